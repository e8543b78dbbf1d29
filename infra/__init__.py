"""What the platform is run with: images, compose, Prometheus, Grafana."""
