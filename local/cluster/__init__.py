"""The core of the local cloud: one supervisor in namespaces of its own, and a control plane per EKS cluster."""
