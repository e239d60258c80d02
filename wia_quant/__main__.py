# SPDX-License-Identifier: Apache-2.0
"""``python -m wia_quant`` is ``wia-quant``."""

from wia_quant.cli.app import main

if __name__ == "__main__":
    main()
