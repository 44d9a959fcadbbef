"""Entry point of the plugin: `python -m local.plugins.eks`, started by the Pulumi engine."""

from local.plugins.eks.provider import EksProvider
from local.plugins.server import serve

if __name__ == "__main__":
    serve(EksProvider())
