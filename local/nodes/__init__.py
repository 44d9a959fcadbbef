"""The machines of the local cloud: a stand-in for every EC2 instance's kubelet, container runtime and kube-proxy."""
