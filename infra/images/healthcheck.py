"""Whether the service in this container is alive: `healthcheck.py PORT`. Needs nothing but Python."""

import http.client
import sys

connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=3)
connection.request("GET", "/healthz")
sys.exit(connection.getresponse().status != 200)
