"""`python -m lab_gpu.daemon`: the master, as this process."""

import sys

from lab_gpu.daemon.main import main
from lab_gpu.daemon.own_log import OwnLog

sys.stderr = OwnLog()
sys.exit(main())
