"""What runs in a worker: a small convolutional network trained by DistributedDataParallel, at any world size."""
