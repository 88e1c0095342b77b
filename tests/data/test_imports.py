import subprocess
import sys


def test_the_room_loads_no_array_framework_and_no_loader_library():
    code = (
        "import sys, nitro_cli.data\n"
        "import numpy as np\n"
        "nitro_cli.data.inspect_split('val', [{'x': np.zeros(2)}])\n"
        "heavy = {'jax', 'torch', 'tensorflow', 'grain', 'datasets'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
