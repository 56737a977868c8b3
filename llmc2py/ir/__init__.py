"""The intermediate representation: frozen dataclasses only, each with the place it was read from.

``library`` holds what the front end reads (kernels, launchers, slices), ``expressions`` and ``statements`` the bodies
of host launchers, ``plans`` what lowering makes of them.
"""
