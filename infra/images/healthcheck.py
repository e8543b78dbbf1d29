"""Whether the service in this container is alive: `healthcheck.py PORT`. Needs nothing but Python."""

import http.client
import os
import ssl
import sys

DISPATCHER = 8082
port = int(sys.argv[1])
if port == DISPATCHER and os.environ.get("PENSTOCK_REST_SSL_CERTFILE"):
    itself = ssl._create_unverified_context()  # its certificate has other names than loopback's
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=3, context=itself)
else:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3)
connection.request("GET", "/healthz")
sys.exit(connection.getresponse().status != 200)
