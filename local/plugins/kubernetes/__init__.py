"""The Kubernetes plugin of the local cloud: pulumi-kubernetes with server-side apply and `helm`."""
