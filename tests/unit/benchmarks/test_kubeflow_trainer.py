"""Kubeflow Trainer on a test's API server: names of CRDs, and where its webhooks are called."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from tests.kubeflow_trainer import crd_name, webhook_configurations

MANIFESTS = """
apiVersion: v1
kind: Service
metadata: {name: webhook-service}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: validating}
webhooks:
- name: vjobset.kb.io
  failurePolicy: Fail
  objectSelector: {matchExpressions: [{key: jobset, operator: Exists}]}
  clientConfig: {service: {name: webhook-service, namespace: system, path: /validate}}
"""


def test_crd_name_of_file_is_plural_and_group() -> None:
    file = Path("trainer.kubeflow.org_trainjobs.yaml")
    assert crd_name(file) == "trainjobs.trainer.kubeflow.org"


def test_webhooks_are_called_at_the_managers_port() -> None:
    (made,) = yaml.safe_load_all(webhook_configurations(MANIFESTS, "jobset-manager", 24001, b"PEM"))
    assert made["metadata"]["name"] == "jobset-manager-validating"
    (webhook,) = made["webhooks"]
    assert webhook["clientConfig"] == {
        "url": "https://127.0.0.1:24001/validate",
        "caBundle": base64.b64encode(b"PEM").decode(),
    }
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["objectSelector"]["matchExpressions"]
