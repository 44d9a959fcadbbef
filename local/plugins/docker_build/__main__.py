"""Entry point of the plugin: `python -m local.plugins.docker_build`, started by the Pulumi engine."""

from local.plugins.docker_build.provider import DockerBuildProvider
from local.plugins.server import serve

if __name__ == "__main__":
    serve(DockerBuildProvider())
