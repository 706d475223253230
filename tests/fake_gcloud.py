"""A `gcloud` for tests: keeps the state of one queued resource, and fails as told.

Run as a command. The folder FAKE_CLOUD has cloud.json with

  resource   None, or its state, the states that follow one at each look, its nodes and
             its `spec`: type, node and number of nodes
  requested  for each request to come, the states that it goes through
  workers    of each node
  health     what it says of the state and health of each, if not that it is well
  endpoints  how many of them the cloud says that a node has, if these are not all
  rules      what is to go wrong: of the first rule whose `match` is in a call, while
             its `times` last and, if it has `when`, that pattern finds a file in the
             bucket, `code` and `stderr` are the answer, `hang` gives none, `worker` is
             the one worker that ssh does not reach, with 255 or the code `ssh`,
             `states` become those of the resource, and `signal` is sent to the
             processes of its workers

and calls.txt, all that was called. A worker of a node is a folder, its home, where
commands run as processes of this machine; it is emptied with its node. Flags are those
of gcloud 528, and no others.
"""

import fcntl
import glob
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

PLACE = {'project', 'zone', 'quiet', 'format'}
FLAGS = {
    'compute tpus queued-resources create': PLACE | {
        'accelerator-type', 'runtime-version', 'node-id', 'node-count', 'node-prefix',
        'spot', 'valid-until-duration', 'async'},
    'compute tpus queued-resources describe': PLACE,
    'compute tpus queued-resources delete': PLACE | {'force', 'async'},
    'compute tpus tpu-vm describe': PLACE,
    'compute tpus tpu-vm ssh': PLACE | {'worker', 'command'},
    'compute tpus accelerator-types list': PLACE,
    'compute tpus tpu-vm versions list': PLACE,
    'storage cp': {'project', 'quiet'},
    'storage ls': {'project', 'quiet'},
}
TYPES, VERSIONS = ('v4-8', 'v4-16', 'v5litepod-16'), ('tpu-ubuntu2204-base', 'v2-alpha')
ROOT = pathlib.Path(os.environ['FAKE_CLOUD'])
BUCKETS = ROOT / 'buckets'


def parse(arguments):
  """Returns the command, what it is called with, and its flags."""
  for command, known in FLAGS.items():
    words = command.split()
    if arguments[:len(words)] == words:
      flags, rest = {}, []
      for argument in arguments[len(words):]:
        name, _, value = argument.removeprefix('--').partition('=')
        if not argument.startswith('--'):
          rest.append(argument)
        elif name in known:
          flags[name] = value
        else:
          leave(2, f'unrecognized arguments: {argument}')
      return command, rest, flags
  return leave(2, f'Invalid choice: {arguments}')


def leave(code, message=''):
  """Ends with the words of gcloud."""
  if message:
    print(f'ERROR: (gcloud.fake) {message}', file=sys.stderr)
  sys.exit(code)


def homes(cloud):
  """Returns the folders of all workers."""
  nodes = (cloud['resource'] or {}).get('nodes', ())
  return [ROOT / 'workers' / f'{node}-w-{i}'
          for node in nodes for i in range(cloud['workers'])]


def send(cloud, number):
  """Sends a signal to the experiment of each worker, and waits until it has ended."""
  runs = [home / 'vvlen/run' for home in homes(cloud)]
  for run in runs:
    if (run / 'pid').exists() and not (run / 'exit').exists():
      os.kill(int((run / 'pid').read_text()), number)
  for run in runs:
    while (run / 'pid').exists() and not (run / 'exit').exists():
      time.sleep(0.02)


def enter(cloud, state):
  """Moves the resource to a state."""
  if state == 'ABSENT':
    cloud['resource'] = None
    return
  if state == 'ACTIVE':
    for home in homes(cloud):
      home.mkdir(parents=True, exist_ok=True)
  elif cloud['resource']['state'] == 'ACTIVE':
    send(cloud, signal.SIGKILL)
    for home in homes(cloud):
      shutil.rmtree(home)
  cloud['resource']['state'] = state


def create(cloud, name, flags):
  """Requests a resource."""
  if cloud['resource']:
    leave(1, f"ALREADY_EXISTS: Resource '{name}' already exists")
  count = int(flags.get('node-count', 1))
  prefix = flags.get('node-prefix', name)
  states = cloud['requested'].pop(0) if cloud['requested'] else [
      'CREATING', 'WAITING_FOR_RESOURCES', 'PROVISIONING', 'ACTIVE']
  cloud['resource'] = dict(
      state='ACCEPTED', next=states,
      nodes=[flags['node-id']] if 'node-id' in flags else [
          f'{prefix}-{i}' for i in range(count)])


def describe(cloud, name, flags):
  """Prints the state, after one step."""
  resource = cloud['resource']
  if resource and flags['format'] == 'value(state.state)' and resource['next']:
    enter(cloud, resource['next'].pop(0))
  if not cloud['resource']:
    leave(1, f"NOT_FOUND: Resource 'queuedResources/{name}' was not found")
  if 'nodeSpec' in flags['format']:
    print(resource.get('spec', ',,'))
  else:
    print(resource['state'] if flags['format'] == 'value(state.state)'
          else cloud.get('failure', ''))


def delete(cloud, name, flags):
  """Begins to delete the resource."""
  resource = cloud['resource']
  if not resource:
    leave(1, f"NOT_FOUND: Resource '{name}' was not found")
  if resource['state'] in ('DELETING', 'SUSPENDING') or 'force' not in flags:
    leave(1, f'FAILED_PRECONDITION: {name} is {resource["state"]} and has nodes')
  enter(cloud, 'DELETING')
  resource['next'] = ['DELETING', 'ABSENT']


def ssh(cloud, node, flags, rule):
  """Runs a command on all workers of a node at once."""
  if not cloud['resource'] or cloud['resource']['state'] != 'ACTIVE':
    leave(1, f"NOT_FOUND: Resource 'nodes/{node}' was not found")
  assert flags['worker'] == 'all'
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  everyone, started = homes(cloud), []
  for number, home in enumerate(everyone):
    if not home.name.startswith(f'{node}-w-'):
      continue
    if home.name.endswith(f'-{rule.get("worker")}'):
      started.append(subprocess.Popen(['bash', '-c', f'exit {rule.get("ssh", 255)}']))
      continue
    started.append(subprocess.Popen(
        ['bash', '-c', flags['command']], cwd=home, stdin=subprocess.DEVNULL, env={
            **os.environ, 'HOME': str(home), 'HOSTNAME': home.name,
            'PATH': f'{ROOT}/worker_bin:{os.environ["PATH"]}',
            'MEGASCALE_NUM_SLICES': '7',  # of an earlier slice
            'JAX_COORDINATOR_ADDRESS': f'127.0.0.1:{port}',
            'JAX_NUM_PROCESSES': str(len(everyone)), 'JAX_PROCESS_ID': str(number)}))
  return max(process.wait() for process in started)


def storage(command, rest):
  """Copies to or from a bucket, or lists it."""
  paths = [BUCKETS / x.removeprefix('gs://') if x.startswith('gs://') else x
           for x in rest]
  if command == 'storage ls':
    found = [x for x in glob.glob(f'{paths[0]}', recursive=True) if os.path.isfile(x)]
    if not found:
      leave(1, 'One or more URLs matched no objects.')
    print('\n'.join(f'gs://{os.path.relpath(x, BUCKETS)}' for x in found))
    return
  source, target = paths
  remote = target if isinstance(target, pathlib.Path) else source
  if not (BUCKETS / remote.relative_to(BUCKETS).parts[0]).exists():
    leave(1, f'{remote.name} not found: 404.')
  pathlib.Path(target).parent.mkdir(parents=True, exist_ok=True)
  data = sys.stdin.buffer.read() if source == '-' else pathlib.Path(source).read_bytes()
  pathlib.Path(target).write_bytes(data)


def obey(cloud, call):
  """Applies the first rule that matches, and returns it."""
  for rule in cloud['rules']:
    if rule['match'] not in call or not rule.get('times', 1):
      continue
    if 'when' in rule and not list(BUCKETS.glob(rule['when'])):
      continue
    rule['times'] = rule.get('times', 1) - 1
    if 'signal' in rule:
      send(cloud, rule['signal'])
    if 'states' in rule:
      cloud['resource']['next'] = rule['states']
    return rule
  return {}


def main():
  arguments = sys.argv[1:]
  # What runs long must not keep others waiting: it holds no lock.
  with (ROOT / 'lock').open('w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    with (ROOT / 'calls.txt').open('a') as calls:
      calls.write(shlex.join(arguments) + '\n')
    command, rest, flags = parse(arguments)
    cloud = json.loads((ROOT / 'cloud.json').read_text())
    try:
      rule = obey(cloud, shlex.join(arguments))
      if 'code' in rule:
        leave(rule['code'], rule['stderr'])
      if 'hang' not in rule and 'queued-resources' in command:
        {'create': create, 'describe': describe, 'delete': delete}[
            command.split()[-1]](cloud, rest[0], flags)
    finally:
      (ROOT / 'cloud.json').write_text(json.dumps(cloud))
  if 'hang' in rule:
    time.sleep(100)
  if command.endswith('ssh'):
    sys.exit(ssh(cloud, rest[0], flags, rule))
  if command.startswith('storage'):
    storage(command, rest)
  elif command.endswith('tpu-vm describe'):
    if flags['format'] == 'value(state,health)':
      print(cloud.get('health', 'READY\tHEALTHY'))
    else:
      print(cloud.get('endpoints', cloud['workers']))
  elif command.endswith('list'):
    print('\n'.join(VERSIONS if 'versions' in command else TYPES))


if __name__ == '__main__':
  main()
