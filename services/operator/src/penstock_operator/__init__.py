"""The operator: jobs on Kubernetes, as their custom resources say."""
