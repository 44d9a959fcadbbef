"""The Kubernetes plugin of the local cloud: pulumi-kubernetes by server-side apply and `helm`."""
