"""Stand-in for the pulumi-eks component plugin: it registers the same resources as the official one."""
