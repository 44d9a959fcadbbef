"""Stand-in of the pulumi-eks component plugin: it registers what the official one was seen to register."""
