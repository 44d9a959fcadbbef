"""Entry point of the plugin: `python -m local.plugins.aws`, started by the Pulumi engine."""

from local.plugins.aws.provider import AwsProvider
from local.plugins.server import serve

if __name__ == "__main__":
    serve(AwsProvider())
