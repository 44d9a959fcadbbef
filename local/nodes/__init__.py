"""The nodes of the local cloud: they stand for the kubelet, container runtime and kube-proxy of each instance."""
