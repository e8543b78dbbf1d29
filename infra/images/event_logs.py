"""The folder of Spark's event logs in the cluster's store, which neither a driver nor the history server makes:
`python event_logs.py FOLDER`."""

import sys

from penstock.errors import PenstockError
from penstock.platform.buckets import make_folder
from penstock.settings import load_settings

if __name__ == "__main__":
    try:
        make_folder(load_settings().store, sys.argv[1])
    except PenstockError as error:
        sys.exit(str(error))
