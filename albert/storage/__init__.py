"""Files and directories, local and in cloud storage.

    files           publishes files and directories; JSON, digests, files named by flags
    cloud           cloud storage: copies inputs in, and outputs out
    locks           directories held by one process, and the work folders of jobs
    temporary       temporary directories next to outputs
    shipped         models that come with this package, by name
"""
