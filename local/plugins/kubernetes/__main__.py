"""Entry point of the plugin's process, started by `local/plugins/bin/pulumi-resource-kubernetes`."""

from local.plugins.kubernetes.provider import KubernetesProvider
from local.plugins.server import serve

if __name__ == "__main__":
    serve(KubernetesProvider())
