"""Files and directories, local and in cloud storage.

    files           publishes files and directories; JSON, digests, files named by flags
    filesystem      opens, lists and copies files by path or address
    mirrors         directories in cloud storage with their local folders: pull, push, owner
    locks           directories held by one process, and the work folders of jobs
    temporary       temporary directories next to outputs
    fsspec_calls    calls of fsspec, and their errors
    shipped         models that come with this package, by name
"""
