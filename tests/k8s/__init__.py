"""The chart on a real Kubernetes: `make k8s`, on the cluster of the current kubectl context."""
