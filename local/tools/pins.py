"""The tools of the local cloud. Their versions and hashes are in the go.mod and go.sum below `modules/`."""

from __future__ import annotations

from pathlib import Path

from local.tools.tool import OnPath, Tool, exactly

_MODULES = Path(__file__).with_name("modules")
LOCAL_CLOUD = _MODULES / "local-cloud"

# The control plane and kubectl. k8s.io/kubernetes replaces its staging modules by its own directories. Go
# uses such replacements only in the main module, so `modules/local-cloud/go.mod` replaces each staging module
# by its published module of the same release.
_KUBERNETES_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
KUBERNETES = Tool(
    name="kubernetes",
    module="k8s.io/kubernetes",
    packages=tuple(f"cmd/{program}" for program in _KUBERNETES_PROGRAMS),
    binaries={program: program for program in _KUBERNETES_PROGRAMS},
    variables={
        "k8s.io/component-base/version.gitMajor": "1",
        "k8s.io/component-base/version.gitMinor": "35",
        "k8s.io/component-base/version.gitVersion": "v1.35.4",
    },
    on_path={
        **{program: OnPath() for program in _KUBERNETES_PROGRAMS},
        "kubectl": OnPath(arguments=("version", "--client")),
    },
    lock=LOCAL_CLOUD,
)

ETCD = Tool(
    name="etcd",
    module="go.etcd.io/etcd/server/v3",
    packages=("",),
    binaries={"server": "etcd"},
    on_path={"etcd": OnPath()},
    lock=LOCAL_CLOUD,
)

# The Python SDK in requirements.txt has the same version.
PULUMI = Tool(
    name="pulumi",
    module="github.com/pulumi/pulumi/pkg/v3",
    packages=("cmd/pulumi",),
    binaries={"pulumi": "pulumi"},
    variables={"github.com/pulumi/pulumi/sdk/v3/go/common/version.Version": "v3.250.0"},
    on_path={"pulumi": OnPath(arguments=("version",), accepts=exactly)},
    lock=LOCAL_CLOUD,
)

# Later releases of the language host are not published as their own Go module. 3.60.0 is the newest one that
# builds alone, and it works with the pinned engine. It starts `pulumi-language-python-exec`, which must be in
# the same directory, with the first Python on PATH. The engine finds the other two scripts, for dynamic
# providers and policy packs, on PATH.
LANGUAGE_PYTHON = Tool(
    name="pulumi-language-python",
    module="github.com/pulumi/pulumi/sdk/v3",
    packages=("python/cmd/pulumi-language-python",),
    binaries={"pulumi-language-python": "pulumi-language-python"},
    files={
        "python/cmd/pulumi-language-python-exec": "pulumi-language-python-exec",
        "python/dist/pulumi-resource-pulumi-python": "pulumi-resource-pulumi-python",
        "python/dist/pulumi-analyzer-policy-python": "pulumi-analyzer-policy-python",
    },
    lock=_MODULES / "language-python",
)

# Karpenter's controller for AWS. Its module also holds the charts and the CRDs.
KARPENTER = Tool(
    name="karpenter",
    module="github.com/aws/karpenter-provider-aws",
    packages=("cmd/controller",),
    binaries={"controller": "karpenter"},
    variables={"sigs.k8s.io/karpenter/pkg/operator.Version": "1.14.1"},
    lock=LOCAL_CLOUD,
)

HELM = Tool(
    name="helm",
    module="helm.sh/helm/v3",
    packages=("cmd/helm",),
    binaries={"helm": "helm"},
    variables={"helm.sh/helm/v3/internal/version.version": "v3.19.0"},
    on_path={"helm": OnPath(arguments=("version", "--template", "{{.Version}}"))},
    lock=LOCAL_CLOUD,
)

# Kubeflow's training operator (PyTorchJob). Its module also holds the manifests.
TRAINING_OPERATOR = Tool(
    name="training-operator",
    module="github.com/kubeflow/training-operator",
    packages=("cmd/training-operator.v1",),
    binaries={"training-operator.v1": "training-operator"},
    lock=LOCAL_CLOUD,
)

# Kubeflow Trainer (TrainJob) and JobSet, which creates its pods: the backend `trainjob` of the launcher. Their modules
# also hold the manifests. They take minutes to build, so only a stack that asks for them gets them. Trainer's go.mod
# names this version of JobSet.
KUBEFLOW_TRAINER = Tool(
    name="kubeflow-trainer",
    module="github.com/kubeflow/trainer/v2",
    packages=("cmd/trainer-controller-manager",),
    binaries={"trainer-controller-manager": "trainer-controller-manager"},
    lock=_MODULES / "kubeflow-trainer",
)
JOBSET = Tool(
    name="jobset",
    module="sigs.k8s.io/jobset",
    packages=("",),
    binaries={"jobset": "jobset-manager"},
    lock=_MODULES / "kubeflow-trainer",
)

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (KUBERNETES, ETCD, PULUMI, LANGUAGE_PYTHON, KARPENTER, HELM, TRAINING_OPERATOR)
}
OPTIONAL_TOOLS: dict[str, Tool] = {tool.name: tool for tool in (KUBEFLOW_TRAINER, JOBSET)}
