// Kubeflow Trainer and JobSet, the versions that Trainer's own go.mod names (local/tools/pins.py).
// After a change, `make locks` updates go.sum.
module build

go 1.26.0

require (
	github.com/kubeflow/trainer/v2 v2.3.0
	sigs.k8s.io/jobset v0.12.0
)
