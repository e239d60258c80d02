# SPDX-License-Identifier: Apache-2.0
"""``python -m wia_quant`` is ``wia-quant``."""

import sys


def main() -> None:
    """The entry point of the console script."""
    try:
        # Here and not above: Ctrl-C may come while the libraries load, and must then be as clean as later.
        from wia_quant.cli import app
    except KeyboardInterrupt:
        sys.exit(130)
    app.main()


if __name__ == "__main__":
    main()
