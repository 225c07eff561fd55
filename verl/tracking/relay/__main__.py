"""`python -m verl.tracking.relay`."""

import sys

from verl.tracking.relay.relay import main

sys.exit(main())
