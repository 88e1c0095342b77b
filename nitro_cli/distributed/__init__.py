"""Several processes of one run: agreeing, watching each other, sharing data, writing one record together."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.distributed.follower import FollowedStore, UnwrittenHistory
    from nitro_cli.distributed.joining import setup_distributed
    from nitro_cli.distributed.peers import watched
    from nitro_cli.distributed.processes import (
        agree,
        barrier,
        gather_bytes,
        host_array,
        in_pieces,
        is_main,
        main_first,
        main_says,
        process_count,
    )
    from nitro_cli.distributed.shared_splits import WatchedDist, shared_split
    from nitro_cli.distributed.shared_writing import begin_with_others, check_common_directory
