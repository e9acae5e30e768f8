"""`python -m flaxformer.cli`."""

import sys

from flaxformer.cli import main

sys.exit(main())
