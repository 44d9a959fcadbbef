"""Stand-in of the docker-build plugin: nothing is built, an image is the digest of what it would be built from."""
