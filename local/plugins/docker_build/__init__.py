"""Stand-in for the docker-build plugin: nothing is built, an image is the digest of its build inputs."""
