"""What is shared by the parts of Trainyard, or installed: Kubernetes API, operator, kubectl plugin, checks, CLI."""
