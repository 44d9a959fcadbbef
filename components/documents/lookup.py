"""The init container that the training operator gives to workers: it waits until the master's name can be looked up.

The operator's own is `alpine:3.10` from Docker Hub with a shell script, without limits of its privileges. Ours runs the
image that the worker runs anyway, so that nothing more is pulled, and keeps to the restricted pod security standard.

The text is a Go template of the package html/template, which knows InitContainerImage, MasterAddr and MaxTries
(github.com/kubeflow/training-operator v1.9.4, pkg/controller.v1/pytorch/initcontainer.go); so there is no `<` in it.
Requests equal limits, because one container where they differ takes the class Guaranteed from the whole pod.
"""

from __future__ import annotations

from typing import Final

from trainyard.k8s.names import POD_USER

TEMPLATE_FILE: Final = "initContainer.yaml"
IMAGE_ARGUMENT: Final = "--pytorch-init-container-image="
TEMPLATE_ARGUMENT: Final = "--pytorch-init-container-template-file="

TEMPLATE: Final = f"""\
- name: init-pytorch
  image: {{{{.InitContainerImage}}}}
  imagePullPolicy: IfNotPresent
  resources:
    limits: {{cpu: 100m, memory: 64Mi}}
    requests: {{cpu: 100m, memory: 64Mi}}
  securityContext:
    allowPrivilegeEscalation: false
    capabilities: {{drop: [ALL]}}
    readOnlyRootFilesystem: true
    runAsNonRoot: true
    runAsUser: {POD_USER}
    seccompProfile: {{type: RuntimeDefault}}
  command:
    - python3
    - -c
    - |
      import socket, sys, time
      for _ in range({{{{.MaxTries}}}}):
          try:
              socket.getaddrinfo("{{{{.MasterAddr}}}}", None)
              sys.exit(0)
          except socket.gaierror as error:
              print("waiting for {{{{.MasterAddr}}}}:", error, flush=True)
              time.sleep(2)
      sys.exit("{{{{.MasterAddr}}}} has no address")
"""
