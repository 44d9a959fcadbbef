"""The core of the local cloud: a supervisor in its own namespaces, and a control plane per EKS cluster."""
