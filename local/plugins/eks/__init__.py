"""Stand-in of the pulumi-eks component plugin: registers what the official one registers (contract: the recorded graph)."""
