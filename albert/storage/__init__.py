"""Files and folders, on this machine and elsewhere.

    filesystem      opens, lists and copies files by path or address
    files           files and folders that appear whole or not at all, JSON, digests, names in flags
    shipped         models that come with this package, by name
    temporaries     what is under way beside them, locked while its process lives
    places          paths of other file systems, and their mirrors on this machine
    mirrors         what is read there is fetched, what is written there is sent
    addresses       what is read at an address, and what a Python call writes there
    leases          the remote directory that one run holds for itself
    remote_files    the calls of fsspec, and what is told when they fail
"""
