"""The Kubernetes control plane and kubectl, in one build: they share nearly every package.

The module requires its staging modules as v0.0.0 and replaces them by its own directories, which only counts
where it is the main module; here each is replaced by its published twin of the same release.
"""

from local.tools.pin import OnPath, Tool

STAGING = (
    "api", "apiextensions-apiserver", "apimachinery", "apiserver", "cli-runtime", "client-go", "cloud-provider",
    "cluster-bootstrap", "code-generator", "component-base", "component-helpers", "controller-manager", "cri-api",
    "cri-client", "csi-translation-lib", "dynamic-resource-allocation", "endpointslice", "externaljwt", "kms",
    "kube-aggregator", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet", "metrics",
    "mount-utils", "pod-security-admission", "sample-apiserver", "sample-cli-plugin", "sample-controller",
)  # fmt: skip
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")

TOOL = Tool(
    name="kubernetes",
    module="k8s.io/kubernetes",
    version="v1.35.4",
    packages=tuple(f"cmd/{program}" for program in PROGRAMS),
    binaries={program: program for program in PROGRAMS},
    replaces={f"k8s.io/{module}": "v0.35.4" for module in STAGING},
    variables={
        f"k8s.io/component-base/version.{name}": value
        for name, value in {"gitMajor": "1", "gitMinor": "35", "gitVersion": "v1.35.4"}.items()
    },
    on_path={
        **{program: OnPath() for program in PROGRAMS if program != "kubectl"},
        "kubectl": OnPath(arguments=("version", "--client")),
    },
    typical_seconds=395,
)
