"""Files and folders on this machine and in cloud storage: open, publish, hold.

    files           files and folders that appear complete or not at all; JSON, digests, globs
    work            temporaries, work folders, directories held by a process
    opening         files opened and found alike, here or there
    filesystem      calls of fsspec: remote files listed, read, written
    copies          local copies of remote files
    write_through   directories in cloud storage, written through a scratch folder
    lease           holds a remote directory for one process
    shipped         models that come with this package, by name
"""
