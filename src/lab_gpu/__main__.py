"""`python -m lab_gpu` is `lab-gpu`."""

import sys

from lab_gpu.cli.main import main

sys.exit(main())
