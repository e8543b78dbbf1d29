"""Grafana: dashboards as code, and how a Grafana finds them."""
