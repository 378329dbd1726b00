"""`python -m lab_gpu.daemon`: the master, as this process."""

import sys

from lab_gpu.daemon.main import main

sys.exit(main())
