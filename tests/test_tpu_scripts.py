"""The scripts for Cloud TPUs, against a `gcloud` that keeps state and fails as told."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT, run_two_processes

SCRIPTS = ROOT / 'tpu_scripts'
BASH_SCRIPTS = sorted([*SCRIPTS.glob('*.sh'), SCRIPTS / 'slurm.sbatch'])
ACTIVE = {'state': 'ACTIVE', 'next': [], 'nodes': ['vvlen']}
SETTINGS = {'PROJECT': 'p-1', 'ZONE': 'us-central2-b', 'NAME': 'vvlen', 'TYPE': 'v4-16',
            'RUNTIME': 'tpu-ubuntu2204-base', 'BUCKET': 'gs://b-1', 'SPOT': 'true',
            'SLICES': '1', 'WAIT_SECONDS': '60', 'MAX_RESTARTS': '5',
            'MAX_FAILURES': '3'}
RUN = ('run.sh', 'toy', '--config=c.py', '--workdir=gs://b-1/runs/toy')
# What Python is on a worker: `-m venv` makes an environment of the same, and the
# processes find each other; the experiment is a script of the test.
PYTHON = r'''#!/bin/bash
if [[ $1 == -c && $2 == *ensurepip* ]]; then exit 0; fi
if [[ $1 == -m && $2 == venv ]]; then
  mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && exit
fi
if [[ $1 == -m && $2 == pip ]]; then
  echo "$PWD $*" >>"$FAKE_CLOUD/pip.txt" && exit
fi
if [[ -e $FAKE_CLOUD/real ]]; then exec "$FAKE_CLOUD/real" "$@"; fi
if [[ $1 == -c ]]; then
  count=$(cat "$FAKE_CLOUD/processes" 2>/dev/null || echo "$JAX_NUM_PROCESSES")
  echo "$HOSTNAME process $JAX_PROCESS_ID of $count devices 4 of $((4 * count))"
  exit
fi
printf '%s\n' "${MEGASCALE_NUM_SLICES-unset}" "$@" >"$FAKE_CLOUD/said.$JAX_PROCESS_ID"
echo "$JAX_PROCESS_ID" >>"$FAKE_CLOUD/starts.txt"
source "$FAKE_CLOUD/experiment"
'''


class Cloud:
  """A checkout with the scripts, and a fake cloud that they see."""

  def __init__(self, folder, resource=None, requested=(), rules=(), workers=2):
    self.folder, self.checkout = folder / 'cloud', folder / 'checkout'
    for path in ('bin', 'worker_bin', 'buckets/b-1'):
      (self.folder / path).mkdir(parents=True)
    gcloud = self.folder / 'bin' / 'gcloud'
    gcloud.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS '
                      f'{shlex.quote(str(ROOT / "tests" / "fake_gcloud.py"))} "$@"\n')
    python = self.folder / 'worker_bin' / 'python3.13'
    python.write_text(PYTHON)
    for path in (gcloud, python):
      path.chmod(0o755)
    self.write(resource=resource, requested=list(requested), rules=list(rules),
               workers=workers)
    for home in self.homes():
      home.mkdir(parents=True)
    self.experiment('exit 0')
    shutil.copytree(SCRIPTS, self.checkout / 'tpu_scripts')
    main = self.checkout / 'experiments' / 'toy' / '__main__.py'
    main.parent.mkdir(parents=True)
    main.write_text('')
    self.set()
    self.git('init', '--quiet')
    self.commit()

  def git(self, *arguments):
    return subprocess.run(
        ['git', '-c', 'user.name=a', '-c', 'user.email=a@b', *arguments], check=True,
        cwd=self.checkout, capture_output=True, text=True).stdout.strip()

  def commit(self):
    self.git('add', '--all')
    self.git('commit', '--quiet', '--message=state')
    return self.git('rev-parse', 'HEAD')

  def set(self, **changed):
    settings = {**SETTINGS, **changed}
    (self.checkout / 'tpu_scripts' / 'env.sh').write_text(
        ''.join(f'{name}={shlex.quote(value)}\n' for name, value in settings.items()))

  def experiment(self, script):
    (self.folder / 'experiment').write_text(script)

  def write(self, **changed):
    path = self.folder / 'cloud.json'
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**old, **changed}))

  @property
  def state(self):
    resource = json.loads((self.folder / 'cloud.json').read_text())['resource']
    return resource and resource['state']

  def homes(self):
    cloud = json.loads((self.folder / 'cloud.json').read_text())
    return [self.folder / 'workers' / f'{node}-w-{i}'
            for node in (cloud['resource'] or {}).get('nodes', ())
            for i in range(cloud['workers'])]

  def start(self, script, *arguments, **environment):
    return subprocess.Popen(
        [self.checkout / 'tpu_scripts' / script, *arguments], cwd=self.folder,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={
            **os.environ, 'PATH': f'{self.folder}/bin:{os.environ["PATH"]}',
            'FAKE_CLOUD': str(self.folder), 'XDG_STATE_HOME': str(self.folder),
            'POLL_SECONDS': '0.05',
            'RETRY_SECONDS': '0', 'STOP_SECONDS': '20', **environment})

  def call(self, script, *arguments, **environment):
    process = self.start(script, *arguments, **environment)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)

  def calls(self, part=''):
    """Returns the calls of gcloud that have this part."""
    path = self.folder / 'calls.txt'
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if part in line]

  def said(self, number=0):
    """Returns what the experiment's process was called with."""
    return (self.folder / f'said.{number}').read_text().splitlines()

  def starts(self):
    """Returns how often the processes were started."""
    return (self.folder / 'starts.txt').read_text().count('0')

  def wait_for(self, condition):
    deadline = time.monotonic() + 60
    while not condition():
      assert time.monotonic() < deadline
      time.sleep(0.02)

  def worker(self, number, *arguments):
    """Calls worker.sh on a worker, as ssh does."""
    home = self.homes()[number]
    return subprocess.Popen(
        ['bash', home / 'vvlen/worker.sh', *arguments], cwd=home, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={
            **os.environ, 'HOME': str(home), 'HOSTNAME': home.name,
            'JAX_PROCESS_ID': str(number), 'FAKE_CLOUD': str(self.folder),
            'PATH': f'{self.folder}/worker_bin:{self.folder}/bin:{os.environ["PATH"]}'})

  def command(self, name, script):
    """Replaces a command of the workers; $real is the command itself."""
    path = self.folder / 'worker_bin' / name
    path.write_text(f'#!/bin/bash\nreal={shutil.which(name)}\n{script}\n')
    path.chmod(0o755)

  def end(self):
    for path in self.folder.glob('workers/*/vvlen/run/pid'):
      if not (path.parent / 'exit').exists():
        with contextlib.suppress(ProcessLookupError):  # it ends at this moment
          os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.fixture
def cloud(tmp_path):
  made = []

  def make(*arguments, **fields):
    made.append(Cloud(tmp_path, *arguments, **fields))
    return made[-1]

  yield make
  for each in made:
    each.end()


def _refused(done, code, *parts):
  """Checks that a script has ended with one line that says why."""
  assert done.returncode == code, (done.stdout, done.stderr)
  line = done.stderr.splitlines()[-1]
  assert re.match(r'\w+\.sh: ', line)
  for part in parts:
    assert part in line


# create.sh and delete.sh


@pytest.mark.slow
def test_a_tpu_is_requested_once_and_waited_for(cloud):
  cloud = cloud()
  done = cloud.call('create.sh')
  assert done.returncode == 0, done.stderr
  told = [line.rpartition(' ')[2] for line in done.stderr.splitlines()]
  assert told == ['ABSENT', 'vvlen', 'CREATING', 'WAITING_FOR_RESOURCES',
                  'PROVISIONING', 'ACTIVE']
  request, = cloud.calls(' create ')
  assert request == (
      'compute tpus queued-resources create vvlen --project=p-1 --zone=us-central2-b '
      '--accelerator-type=v4-16 --runtime-version=tpu-ubuntu2204-base --node-id=vvlen '
      '--spot --valid-until-duration=60s --quiet --async')
  assert cloud.call('create.sh').returncode == 0
  assert len(cloud.calls(' create ')) == 1


@pytest.mark.parametrize(('state', 'following', 'created', 'deleted'), [
    ('CREATING', ['ACCEPTED', 'ACTIVE'], 0, 0),
    ('ACCEPTED', ['PROVISIONING', 'ACTIVE'], 0, 0),
    ('WAITING_FOR_RESOURCES', ['ACTIVE'], 0, 0),
    ('PROVISIONING', ['ACTIVE'], 0, 0),
    ('ACTIVE', [], 0, 0),
    ('FAILED', [], 1, 1),
    ('SUSPENDED', [], 1, 1),
    ('SUSPENDING', ['SUSPENDING', 'SUSPENDED'], 1, 1),
    ('DELETING', ['DELETING', 'ABSENT'], 1, 0),
])
def test_each_state_of_a_resource_is_left_for_active(
    cloud, state, following, created, deleted):
  cloud = cloud({'state': state, 'next': following, 'nodes': ['vvlen']})
  done = cloud.call('create.sh')
  assert (done.returncode, cloud.state) == (0, 'ACTIVE'), done.stderr
  assert len(cloud.calls(' create ')) == created
  assert len(cloud.calls(' delete ')) == deleted
  assert all('--force' in call for call in cloud.calls(' delete '))


@pytest.mark.slow
def test_slices_are_nodes_of_one_resource(cloud):
  cloud = cloud(workers=1)
  cloud.set(SLICES='3', SPOT='false')
  cloud.commit()
  assert cloud.call('create.sh').returncode == 0
  request, = cloud.calls(' create ')
  assert ' --node-count=3 --node-prefix=vvlen ' in request
  assert '--node-id' not in request and '--spot' not in request
  done = cloud.call('setup.sh')
  assert 'Ready: 3 processes' in done.stderr, done.stderr
  assert {home.name for home in cloud.homes()} == {f'vvlen-{i}-w-0' for i in range(3)}


def test_no_quota_is_told_apart_and_not_tried_again(cloud):
  cloud = cloud(rules=[{'match': ' create ', 'times': 9, 'code': 1, 'stderr': (
      "RESOURCE_EXHAUSTED: Quota limit 'TPUV4sPreemptiblePodPerProjectPerRegion"
      "ForTPUAPI' has been exceeded. Limit: 0 in region us-central2.")}])
  _refused(cloud.call('create.sh'), 3, 'no quota', 'Limit: 0')
  assert len(cloud.calls(' create ')) == 1


@pytest.mark.slow
def test_a_limit_of_calls_a_minute_is_no_quota_of_tpus(cloud):
  cloud = cloud(rules=[{'match': ' create ', 'times': 2, 'code': 1, 'stderr': (
      "RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Requests' and limit "
      "'Requests per minute'")}])
  assert cloud.call('create.sh').returncode == 0
  assert len(cloud.calls(' create ')) == 3


@pytest.mark.slow
def test_a_request_that_is_not_filled_in_time_is_deleted(cloud):
  cloud = cloud(requested=[['WAITING_FOR_RESOURCES'] * 999])
  cloud.set(WAIT_SECONDS='2')
  _refused(cloud.call('create.sh'), 4, 'within 2 seconds', 'deleted')
  assert cloud.state is None
  assert ' --valid-until-duration=2s ' in cloud.calls(' create ')[0]


@pytest.mark.slow
def test_a_resource_that_fails_is_made_anew_a_few_times(cloud):
  failing = ['PROVISIONING', 'FAILED']
  cloud = cloud(requested=[failing, failing])
  done = cloud.call('create.sh')
  assert (done.returncode, cloud.state) == (0, 'ACTIVE'), done.stderr
  assert len(cloud.calls(' create ')) == 3 and len(cloud.calls(' delete ')) == 2
  assert all('--force' in call for call in cloud.calls(' delete '))
  cloud.write(resource=None, requested=[failing] * 9, failure='Internal error')
  _refused(cloud.call('create.sh'), 5, 'failed 3 times', 'Internal error')
  assert cloud.state is None


@pytest.mark.parametrize(('failure', 'code'), [
    ("Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted.", 3),
    ('The valid until time of the request has expired', 4)])
def test_why_a_resource_failed_is_told(cloud, failure, code):
  cloud = cloud(requested=[['PROVISIONING', 'FAILED']] * 9)
  cloud.write(failure=failure)
  _refused(cloud.call('create.sh'), code, failure)
  assert len(cloud.calls(' create ')) == 1 and cloud.state is None


@pytest.mark.slow
def test_calls_without_an_answer_are_made_again_a_few_times(cloud):
  # The fake gcloud, a Python script, may need half a second to start.
  cloud = cloud(ACTIVE, rules=[{'match': ' describe ', 'times': 2, 'hang': True}])
  done = cloud.call('create.sh', CALL_SECONDS='1.2')
  assert done.returncode == 0, done.stderr
  assert done.stderr.count('no answer within 1.2 seconds: trying again') == 2
  cloud.write(rules=[{'match': ' describe ', 'times': 99, 'hang': True}])
  before = len(cloud.calls())
  _refused(cloud.call('create.sh', CALL_SECONDS='1.2'), 5, 'no answer')
  assert len(cloud.calls()) - before == 4


@pytest.mark.slow
def test_what_is_being_deleted_is_not_deleted_again(cloud):
  cloud = cloud({'state': 'DELETING', 'next': ['DELETING'] * 3 + ['ABSENT'],
                 'nodes': ['vvlen']})
  done = cloud.call('delete.sh')
  assert done.returncode == 0, done.stderr
  assert not cloud.calls(' delete ')
  assert done.stderr.splitlines() == ['vvlen is deleted']
  done = cloud.call('delete.sh')
  assert done.returncode == 0
  assert done.stderr.splitlines() == [
      'There is no vvlen in us-central2-b of p-1: nothing is deleted']
  # It may begin between the look and the call.
  cloud.write(resource=ACTIVE, rules=[
      {'match': ' delete ', 'code': 1, 'stderr': 'FAILED_PRECONDITION: it is DELETING',
       'states': ['DELETING', 'ABSENT']}])
  done = cloud.call('delete.sh')
  assert (done.returncode, cloud.state) == (0, None), done.stderr
  assert len(cloud.calls(' delete ')) == 1


def test_a_deletion_that_does_not_end_is_told(cloud):
  cloud = cloud({'state': 'DELETING', 'next': [], 'nodes': ['vvlen']})
  _refused(cloud.call('delete.sh', DELETE_SECONDS='1'), 5, 'DELETING', 'cost')


# Wrong input


@pytest.mark.slow
@pytest.mark.parametrize(('spec', 'slices', 'code'), [
    ('v4-16,vvlen,', '1', 0), ('v4-16,,2', '2', 0), (',,', '2', 0),
    ('v4-8,vvlen,', '1', 2), ('v4-16,,2', '1', 2), ('v4-16,vvlen,', '2', 2)])
def test_a_tpu_that_is_not_that_of_the_settings_is_refused(cloud, spec, slices, code):
  cloud = cloud({**ACTIVE, 'spec': spec})
  cloud.set(SLICES=slices)
  done = cloud.call('create.sh')
  assert done.returncode == code, done.stderr
  if code:
    _refused(done, 2, f'not {slices} x v4-16 as in env.sh')


@pytest.mark.slow
def test_settings_of_another_tpu_delete_none(cloud):
  cloud = cloud({**ACTIVE, 'spec': 'v4-16,vvlen,'}, rules=[
      {'match': 'describe vvlen-0', 'times': 9, 'code': 1, 'stderr':
       "ERROR: NOT_FOUND: Resource 'nodes/vvlen-0' was not found"}])
  cloud.set(SLICES='2')
  cloud.commit()
  _refused(cloud.call(*RUN), 2, 'vvlen is 1 x v4-16, not 2 x v4-16')
  assert cloud.state == 'ACTIVE' and not cloud.calls(' delete ')


@pytest.mark.parametrize(('setting', 'value', 'parts'), [
    ('TYPE', 'v4-9', ("no TPU type 'v4-9'", 'v4-8 v4-16 v5litepod-16')),
    ('RUNTIME', 'none', ("no runtime version 'none'", 'tpu-ubuntu2204-base v2-alpha')),
    ('NAME', 'My_TPU', ("NAME 'My_TPU'", 'small letter')),
    ('NAME', 'a' * 61, ('NAME',)),
    ('BUCKET', 'b-1', ("BUCKET 'b-1'", 'gs://name')),
    ('BUCKET', 'gs://b; rm x', ('BUCKET',)),
    ('BUCKET', 'gs://my-bucket', ('edit env.sh',)),
    ('SPOT', 'yes', ("SPOT 'yes'",)),
    ('SLICES', '0', ("SLICES '0'",)),
    ('ZONE', '', ('ZONE',)),
])
def test_wrong_settings_are_one_line(cloud, setting, value, parts):
  cloud = cloud()
  cloud.set(**{setting: value})
  _refused(cloud.call('create.sh'), 2, *parts)
  assert not cloud.calls(' create ')


def test_what_gcloud_refuses_is_told_in_its_words(cloud):
  cloud = cloud(rules=[{'match': ' create ', 'times': 9, 'code': 1, 'stderr':
                        "INVALID_ARGUMENT: 'vvlen' is not a valid name"}])
  _refused(cloud.call('create.sh'), 2, "'vvlen' is not a valid name")
  assert len(cloud.calls(' create ')) == 1


@pytest.mark.slow
def test_files_that_are_not_committed_are_not_sent_unsaid(cloud):
  cloud = cloud(ACTIVE)
  last = cloud.git('rev-parse', 'HEAD')
  (cloud.checkout / 'new.py').write_text('')
  for script in (['setup.sh'], RUN):
    _refused(cloud.call(*script), 2, 'not committed', f'--commit={last[:10]}')
  assert not cloud.calls()
  done = cloud.call('setup.sh', f'--commit={last[:10]}')
  assert done.returncode == 0, done.stderr
  assert f'Sending commit {cloud.git("rev-parse", "--short", "HEAD")}' in done.stderr
  for home in cloud.homes():
    assert (home / 'vvlen' / last / 'experiments').exists()
    assert not (home / 'vvlen' / last / 'new.py').exists()


def test_a_checkout_that_git_cannot_compare_is_not_taken_for_clean(cloud):
  cloud = cloud(ACTIVE)
  (cloud.checkout / '.git' / 'index').write_text('damaged')
  _refused(cloud.call('setup.sh'), 2, 'git does not say')
  assert not cloud.calls()


@pytest.mark.parametrize('arguments', [
    ('create.sh', 'x'), ('status.sh', 'x'), ('logs.sh', 'x'), ('setup.sh', 'x'),
    ('setup.sh', '--commit=none'), ('run.sh',), ('run.sh', 'toy', '--workdir=/tmp/x'),
    ('run.sh', 'none', '--workdir=gs://b-1/x')])
def test_wrong_arguments_are_one_line(cloud, arguments):
  cloud = cloud(ACTIVE)
  _refused(cloud.call(*arguments), 2)
  assert not cloud.calls()


def test_without_a_tpu_there_is_nothing_to_set_up_or_stop(cloud):
  cloud = cloud()
  for script in ('setup.sh', 'logs.sh', 'stop.sh'):
    _refused(cloud.call(script), 2, 'ABSENT', 'create.sh')


# setup.sh


@pytest.mark.slow
def test_the_commit_is_installed_on_every_worker_once(cloud):
  cloud = cloud(ACTIVE)
  commit = cloud.git('rev-parse', 'HEAD')
  for _ in range(2):
    done = cloud.call('setup.sh')
    assert done.returncode == 0, done.stderr
    assert 'Ready: 2 processes, 8 devices' in done.stderr
  installed = (cloud.folder / 'pip.txt').read_text().splitlines()
  assert sorted(installed) == [
      f'{home}/vvlen/{commit} -m pip install --quiet .[tpu,gcs]'
      for home in cloud.homes()]


@pytest.mark.slow
@pytest.mark.parametrize('rule', [
    {'match': 'code.tar.gz gs://', 'code': 1, 'stderr': 'HTTPError 403: a@b does not '
     'have storage.objects.create access to the Google Cloud Storage object.'},
    {'match': 'cp --quiet gs://', 'code': 1, 'stderr': 'HTTPError 403: 1-compute@d '
     'does not have storage.objects.get access to the Google Cloud Storage object.'},
    {'match': 'cp --quiet - gs://', 'code': 1, 'stderr': 'HTTPError 403: 1-compute@d '
     'does not have storage.objects.create access to the Google Cloud Storage object.'},
])
def test_rights_to_the_bucket_that_are_missing_are_told(cloud, rule):
  cloud = cloud(ACTIVE, rules=[{**rule, 'times': 9}])
  _refused(cloud.call('setup.sh'), 2, 'gs://b-1', 'not have storage.objects.')
  assert len(cloud.calls('code.tar.gz gs://')) == 1
  assert len(cloud.calls('tpu-vm ssh')) <= 1


@pytest.mark.slow
def test_a_worker_out_of_reach_is_tried_again_a_few_times(cloud):
  cloud = cloud(ACTIVE, rules=[{'match': 'ssh', 'times': 1, 'worker': 1}])
  done = cloud.call('setup.sh')
  assert done.returncode == 0, done.stderr
  assert 'trying again' in done.stderr
  assert all((home / 'vvlen/worker.sh').exists() for home in cloud.homes())
  cloud.write(rules=[{'match': 'ssh', 'times': 99, 'worker': 1}])
  before = len(cloud.calls('ssh'))
  _refused(cloud.call('setup.sh'), 5, 'setup of vvlen')
  assert len(cloud.calls('ssh')) - before == 4


@pytest.mark.slow
def test_an_ssh_key_may_reach_a_new_worker_late(cloud):
  rule = {'match': 'ssh', 'code': 255,
          'stderr': 'a@10.0.0.1: Permission denied (publickey).'}
  cloud = cloud(ACTIVE, rules=[{**rule, 'times': 2}])
  done = cloud.call('setup.sh')
  assert done.returncode == 0, done.stderr
  cloud.write(rules=[{**rule, 'times': 99}])
  _refused(cloud.call('setup.sh'), 2, 'Permission denied (publickey)')


@pytest.mark.slow
def test_processes_that_do_not_find_each_other_are_told(cloud):
  cloud = cloud(ACTIVE)
  (cloud.folder / 'processes').write_text('1')
  _refused(cloud.call('setup.sh'), 2, '2 workers of 1 x v4-16 do not make one run')


@pytest.mark.slow
def test_a_worker_that_does_not_answer_is_missed(cloud):
  cloud = cloud(ACTIVE)
  cloud.write(endpoints=3)
  _refused(cloud.call('setup.sh'), 2, '3 workers of 1 x v4-16 do not make one run of 3',
           '2 have answered')
  cloud.write(rules=[{'match': 'worker.sh check', 'code': 0, 'stderr': ''}])
  _refused(cloud.call('setup.sh'), 2, '0 have answered')
  cloud.write(endpoints='')
  _refused(cloud.call('setup.sh'), 5,
           "the cloud does not say how many workers vvlen has: ''")


# run.sh

# Runs for long at the first start, and ends at the second.
UNTIL_LOST = '''
    if [[ $(grep -c "$JAX_PROCESS_ID" "$FAKE_CLOUD/starts.txt") == 1 ]]; then
      touch "$FAKE_CLOUD/buckets/b-1/step"; sleep 60; exit 1
    fi
    rm -f "$FAKE_CLOUD/buckets/b-1/step"'''


@pytest.mark.slow
def test_a_run_needs_one_call(cloud):
  cloud = cloud()
  odd = "--config.arms=('none', 'it''s $HOME')"
  done = cloud.call(*RUN, odd)
  assert done.returncode == 0, done.stderr
  for number in range(2):
    assert cloud.said(number) == [
        'unset', '-m', 'experiments.toy', '--config=c.py', '--workdir=gs://b-1/runs/toy',
        odd, '--distributed']
  assert cloud.state == 'ACTIVE' and 'delete.sh' in done.stderr.splitlines()[-1]
  done = cloud.call('status.sh')
  assert done.stdout.splitlines() == [
      'vvlen: ACTIVE', 'vvlen-w-0 exit 0', 'vvlen-w-1 exit 0']
  assert cloud.call(*RUN).returncode == 0 and cloud.starts() == 2


@pytest.mark.slow
@pytest.mark.parametrize('states', [
    ['SUSPENDING', 'SUSPENDED'], ['SUSPENDED'], ['FAILED']])
def test_a_run_that_loses_its_tpu_gets_another(cloud, states):
  cloud = cloud(rules=[{'match': ' describe ', 'when': 'b-1/step', 'states': states}])
  cloud.experiment('''
      if [[ ! -e $FAKE_CLOUD/buckets/b-1/step ]]; then
        sleep 0.2; touch "$FAKE_CLOUD/buckets/b-1/step"; sleep 100
      fi''')
  commit = cloud.git('rev-parse', 'HEAD')
  process = cloud.start(*RUN)
  cloud.wait_for((cloud.folder / 'starts.txt').exists)
  (cloud.checkout / 'later.py').write_text('')  # is of no concern to this run
  cloud.commit()
  _, err = process.communicate(timeout=60)
  assert process.returncode == 0, err
  assert 'Preempted: restart 1 of at most 5' in err
  assert (len(cloud.calls(' create ')), len(cloud.calls(' delete '))) == (2, 1)
  assert cloud.starts() == 2
  for home in cloud.homes():
    assert [x.name for x in (home / 'vvlen').glob('?' * 40)] == [commit]


NO_QUOTA = {'match': ' create ', 'code': 1, 'stderr':
            "RESOURCE_EXHAUSTED: Quota limit 'TPUV4s' has been exceeded. Limit: 16"}


@pytest.mark.slow
@pytest.mark.parametrize(('refusals', 'seconds', 'code'), [(2, '60', 0), (999, '0', 3)])
def test_quota_after_a_preemption_is_waited_for(cloud, refusals, seconds, code):
  cloud = cloud(ACTIVE, rules=[
      {'match': ' describe ', 'when': 'b-1/step', 'states': ['SUSPENDED']},
      {**NO_QUOTA, 'times': refusals}])
  cloud.experiment(UNTIL_LOST)
  done = cloud.call(*RUN, QUOTA_SECONDS=seconds)
  assert done.returncode == code, done.stderr
  assert 'no quota' in done.stderr
  assert cloud.starts() == (1 if code else 2)


def test_a_first_request_that_fails_is_told_in_its_words(cloud):
  cloud = cloud(rules=[{'match': ' create ', 'times': 99, 'code': 1, 'stderr': 'odd'}])
  done = cloud.call(*RUN)
  _refused(done, 5, 'request of vvlen', 'odd')
  assert 'somebody' not in done.stderr


def test_quota_of_the_first_request_is_not_waited_for(cloud):
  cloud = cloud(rules=[{**NO_QUOTA, 'times': 999}])
  _refused(cloud.call(*RUN), 3, 'no quota')
  assert len(cloud.calls(' create ')) == 1


@pytest.mark.slow
def test_an_edit_of_the_settings_is_for_the_next_run(cloud):
  cloud = cloud(ACTIVE, rules=[
      {'match': ' describe ', 'when': 'b-1/step', 'states': ['SUSPENDED']}])
  cloud.experiment(UNTIL_LOST)
  process = cloud.start(*RUN)
  cloud.wait_for((cloud.folder / 'starts.txt').exists)
  cloud.set(NAME='other', TYPE='v4-8', ZONE='europe-west4-a')
  _, err = process.communicate(timeout=60)
  assert process.returncode == 0, err
  request, = cloud.calls(' create ')
  assert ' vvlen ' in request and '--accelerator-type=v4-16' in request
  assert not cloud.calls('europe')


@pytest.mark.slow
def test_143_is_a_preemption_and_restarts_are_bounded(cloud):
  cloud = cloud(ACTIVE)
  cloud.experiment('exit 143')
  _refused(cloud.call(*RUN), 5, 'Preempted, after 5 restarts')
  assert cloud.starts() == 6


@pytest.mark.slow
def test_a_preempted_worker_counts_though_the_others_fail_without_it(cloud):
  cloud = cloud(ACTIVE)
  cloud.experiment('exit $((JAX_PROCESS_ID == 1 ? 143 : 1))')
  done = cloud.call(*RUN)
  _refused(done, 5, 'Preempted, after 5 restarts')
  assert 'Failed' not in done.stderr and cloud.starts() == 6


@pytest.mark.slow
def test_workers_that_are_lost_while_the_resource_is_active_are_replaced(cloud):
  cloud = cloud(ACTIVE, rules=[
      {'match': 'worker.sh state', 'when': 'b-1/step', 'code': 1, 'stderr':
       'This TPU has terminal state "PREEMPTED", so it cannot be used anymore.'}])
  cloud.write(health='PREEMPTED')
  cloud.experiment('''
      if [[ ! -e $FAKE_CLOUD/buckets/b-1/step ]]; then
        touch "$FAKE_CLOUD/buckets/b-1/step"; sleep 100
      fi''')
  done = cloud.call(*RUN)
  assert done.returncode == 0, done.stderr
  assert 'Workers are lost: restart 1' in done.stderr
  assert len(cloud.calls(' delete ')) == 1 and cloud.starts() == 2


# A call of gcloud succeeds, without the output of all workers, or of one.
NO_ANSWER = [{'code': 0, 'stderr': ''}, {'worker': 1, 'ssh': 0}]


@pytest.mark.slow
@pytest.mark.parametrize('silence', NO_ANSWER)
def test_workers_without_an_answer_have_not_ended(cloud, silence):
  cloud = cloud(ACTIVE, rules=[
      {'match': 'worker.sh state', 'when': 'b-1/step', 'times': 3, **silence}])
  cloud.experiment('''
      [[ $JAX_PROCESS_ID == 1 ]] || exit 0
      touch "$FAKE_CLOUD/buckets/b-1/step"
      until grep -q '"times": 0' "$FAKE_CLOUD/cloud.json"; do sleep 0.1; done
      touch "$FAKE_CLOUD/ended"''')
  done = cloud.call(*RUN)
  assert done.returncode == 0, done.stderr
  assert (cloud.folder / 'ended').exists() and cloud.starts() == 1


@pytest.mark.slow
@pytest.mark.parametrize('silence', NO_ANSWER)
@pytest.mark.parametrize('script', ['stop.sh', 'status.sh'])
def test_workers_without_an_answer_are_told(cloud, script, silence):
  cloud = cloud(ACTIVE, rules=[{'match': 'tpu-vm ssh', **silence}])
  _refused(cloud.call(script), 5, 'of 2 workers have answered')


@pytest.mark.slow
@pytest.mark.parametrize(('looks', 'health', 'starts'), [
    (4, 'READY\tTIMEOUT', 1), (5, 'READY\tTIMEOUT', 2),
    (9, 'READY\tHEALTHY', 1), (9, 'READY', 1)])
def test_a_worker_out_of_reach_is_replaced_if_the_cloud_calls_it_unhealthy(
    cloud, looks, health, starts):
  cloud = cloud(ACTIVE, rules=[
      {'match': 'worker.sh state', 'when': 'b-1/step', 'times': looks, 'worker': 1}])
  cloud.write(health=health)
  cloud.experiment('''
      if [[ ! -e $FAKE_CLOUD/buckets/b-1/step ]]; then
        touch "$FAKE_CLOUD/buckets/b-1/step"
        until grep -q '"times": 0' "$FAKE_CLOUD/cloud.json"; do sleep 0.1; done
      fi''')
  done = cloud.call(*RUN, ATTEMPTS='1')
  assert done.returncode == 0, done.stderr
  assert cloud.starts() == starts and len(cloud.calls(' delete ')) == starts - 1


OFFLINE = {'match': 'compute tpus', 'when': 'b-1/step', 'code': 1, 'stderr':
           'ERROR: gcloud crashed (TransportError): HTTPSConnectionPool: Max retries '
           'exceeded (Failed to establish a new connection: [Errno -2])'}


@pytest.mark.slow
def test_a_run_is_watched_again_after_a_while_without_network(cloud):
  cloud = cloud(ACTIVE, rules=[{**OFFLINE, 'times': 20}])
  cloud.experiment('''
      touch "$FAKE_CLOUD/buckets/b-1/step"
      until grep -q '"times": 0' "$FAKE_CLOUD/cloud.json"; do sleep 0.1; done''')
  done = cloud.call(*RUN)
  assert done.returncode == 0, done.stderr
  assert done.stderr.count('vvlen is not known to be lost') == 1
  assert cloud.starts() == 1 and not cloud.calls(' delete ')


@pytest.mark.slow
def test_without_network_for_long_the_run_is_left_alone(cloud):
  cloud = cloud(ACTIVE, rules=[{**OFFLINE, 'times': 9999}])
  cloud.experiment(UNTIL_LOST)
  done = cloud.call(*RUN, MAX_UNREACHABLE_SECONDS='1')
  _refused(done, 5, 'no answer for', 'vvlen may be training')
  assert cloud.state == 'ACTIVE' and not cloud.calls(' delete ')


@pytest.mark.slow
def test_a_healthy_tpu_that_does_not_answer_for_long_is_replaced(cloud):
  cloud = cloud(ACTIVE, rules=[{'match': 'worker.sh state', 'when': 'b-1/step',
                                'times': 9999, 'worker': 1}])
  cloud.experiment(UNTIL_LOST)
  done = cloud.call(*RUN, MAX_UNREACHABLE_SECONDS='5')
  assert done.returncode == 0, done.stderr
  assert 'Workers are lost: restart 1' in done.stderr
  assert cloud.starts() == 2 and len(cloud.calls(' delete ')) == 1


@pytest.mark.slow
def test_an_ssh_key_that_is_refused_costs_no_tpu(cloud):
  cloud = cloud(ACTIVE, rules=[{
      'match': 'worker.sh state', 'when': 'b-1/step', 'times': 9999, 'code': 255,
      'stderr': 'a@10.0.0.1: Permission denied (publickey).\n'
                'ERROR: (gcloud.fake) [/usr/bin/ssh] exited with return code [255].'}])
  cloud.experiment(UNTIL_LOST)
  done = cloud.call(*RUN)
  _refused(done, 2, 'Permission denied (publickey)')
  assert 'The run may go on' in done.stderr
  assert cloud.state == 'ACTIVE' and not cloud.calls(' delete ')


@pytest.mark.slow
def test_a_restart_that_the_network_cuts_off_is_tried_again(cloud):
  cloud = cloud(ACTIVE, rules=[
      {'match': ' describe ', 'when': 'b-1/step', 'states': ['SUSPENDED']},
      {**OFFLINE, 'match': ' create ', 'times': 4}])
  cloud.experiment(UNTIL_LOST)
  done = cloud.call(*RUN)
  assert done.returncode == 0, done.stderr
  assert cloud.starts() == 2 and len(cloud.calls(' create ')) == 5


@pytest.mark.slow
def test_exit_code_2_ends_all_and_is_not_tried_again(cloud):
  cloud = cloud(ACTIVE)
  cloud.experiment('''
      [[ $JAX_PROCESS_ID == 1 ]] || sleep 100
      echo "config has no field x" >&2; exit 2''')
  done = cloud.call(*RUN)
  _refused(done, 2, 'wrong input to toy')
  assert 'vvlen-w-1: config has no field x' in done.stderr
  assert cloud.starts() == 1
  assert cloud.call('status.sh').stdout.splitlines()[1:] == [
      'vvlen-w-0 exit 137', 'vvlen-w-1 exit 2']


@pytest.mark.slow
def test_failures_are_bounded_where_no_checkpoint_is_new(cloud):
  cloud = cloud(ACTIVE)
  cloud.experiment('echo Traceback >&2; exit 1')
  done = cloud.call(*RUN)
  _refused(done, 1, 'failed 3 times without a new checkpoint')
  assert cloud.starts() == 3 and 'vvlen-w-0: Traceback' in done.stderr
  # Two more are new; what is saved again is not, though names in it are.
  cloud.experiment('''
      n=$(grep -c 0 "$FAKE_CLOUD/starts.txt"); ((n > 5)) && n=5
      folder=$FAKE_CLOUD/buckets/b-1/runs/toy/checkpoints/none/seed_0/$n
      mkdir -p "$folder" && touch "$folder/$RANDOM$RANDOM$RANDOM"; sleep 0.3; exit 1''')
  _refused(cloud.call(*RUN), 1, 'failed 3 times')
  assert cloud.starts() == 3 + 4


@pytest.mark.slow
def test_an_end_while_the_state_is_read_is_no_preemption(cloud):
  cloud = cloud(ACTIVE)
  cloud.experiment('''
      rm -f "$FAKE_CLOUD/look.$HOSTNAME"
      until [[ -e $FAKE_CLOUD/look.$HOSTNAME ]]; do sleep 0.05; done; exit 1''')
  cloud.command('flock', '''
      [[ $* != *--nonblock* ]] || { touch "$FAKE_CLOUD/look.$HOSTNAME"; sleep 1; }
      exec $real "$@"''')
  _refused(cloud.call(*RUN), 1, 'failed 3 times')
  assert cloud.starts() == 3


@pytest.mark.slow
def test_processes_that_wait_for_one_that_is_dead_are_ended(cloud):
  cloud = cloud(ACTIVE)
  cloud.experiment('''
      [[ $(grep -c $JAX_PROCESS_ID "$FAKE_CLOUD/starts.txt") == 1 ]] || exit 0
      [[ $JAX_PROCESS_ID == 1 ]] || sleep 100
      sleep 0.5; kill -ABRT $$''')
  done = cloud.call(*RUN, STOP_SECONDS='1')
  assert done.returncode == 0, done.stderr
  assert 'toy: partly' in done.stderr and cloud.starts() == 2


@pytest.mark.slow
def test_stop_waits_for_the_save_and_ends_the_run(cloud):
  cloud = cloud(ACTIVE)
  cloud.experiment('''
      trap 'sleep 0.5; touch "$FAKE_CLOUD/saved.$JAX_PROCESS_ID"; exit 143' TERM
      while :; do sleep 0.05; done''')
  process = cloud.start(*RUN)
  cloud.wait_for(lambda: len(list(cloud.folder.glob('said.*'))) == 2)
  time.sleep(0.2)
  done = cloud.call('stop.sh')
  assert done.returncode == 0, done.stderr
  assert len(list(cloud.folder.glob('saved.*'))) == 2
  _, err = process.communicate(timeout=60)
  assert process.returncode == 143, err
  assert cloud.starts() == 1 and cloud.state == 'ACTIVE'
  assert cloud.call('stop.sh').returncode == 0
  cloud.experiment('exit 0')
  assert cloud.call(*RUN).returncode == 0 and cloud.starts() == 2


@pytest.mark.slow
def test_a_second_call_watches_what_runs_and_replaces_nothing(cloud):
  cloud = cloud(ACTIVE)
  cloud.experiment('while [[ ! -e $FAKE_CLOUD/go ]]; do sleep 0.05; done')
  first = cloud.start(*RUN)
  cloud.wait_for(lambda: len(list(cloud.folder.glob('said.*'))) == 2)
  first.send_signal(signal.SIGTERM)
  assert first.wait(timeout=30) == 130 and 'goes on' in first.stderr.read()
  (cloud.checkout / 'later.py').write_text('')
  cloud.commit()
  _refused(cloud.call(*RUN, '--config.seed=1'), 2, 'another experiment runs here')
  _refused(cloud.call('setup.sh'), 2, 'an experiment runs here')
  second = cloud.start(*RUN)
  cloud.wait_for(lambda: len(cloud.calls('worker.sh same')) == 2)
  cloud.wait_for(lambda: cloud.calls()[-1].count('worker.sh state'))
  (cloud.folder / 'go').touch()
  _, err = second.communicate(timeout=60)
  assert second.returncode == 0, err
  assert cloud.starts() == 1 and not cloud.calls(' create ')


@pytest.mark.slow
def test_a_resource_that_somebody_deletes_is_not_made_anew(cloud):
  cloud = cloud(ACTIVE)
  cloud.experiment('sleep 100')
  process = cloud.start(*RUN)
  cloud.wait_for(lambda: len(list(cloud.folder.glob('said.*'))) == 2)
  assert cloud.call('delete.sh').returncode == 0
  _, err = process.communicate(timeout=60)
  assert process.returncode == 5 and 'somebody has deleted it' in err
  assert cloud.state is None and not cloud.calls(' create ')


@pytest.mark.slow
def test_a_resource_deleted_while_its_workers_are_asked_is_not_made_anew(cloud):
  cloud = cloud(ACTIVE, rules=[
      {'match': 'worker.sh state'},  # the look before the start
      {'match': 'worker.sh state', 'states': ['DELETING', 'DELETING', 'ABSENT'],
       'code': 1, 'stderr': "ERROR: NOT_FOUND: Resource 'nodes/vvlen' was not found"}])
  cloud.experiment('sleep 100')
  done = cloud.call(*RUN)
  assert done.returncode == 5 and 'somebody has deleted it' in done.stderr
  assert not cloud.calls(' create ') and not cloud.calls(' delete ')


@pytest.mark.slow
def test_logs_are_of_every_worker(cloud):
  cloud = cloud(ACTIVE)
  cloud.experiment('echo one; echo two $JAX_PROCESS_ID')
  assert cloud.call(*RUN).returncode == 0
  done = cloud.call('logs.sh', '1')
  assert sorted(done.stdout.split('\n')) == ['', 'vvlen-w-0: two 0', 'vvlen-w-1: two 1']


# worker.sh


def _set_up(cloud):
  """Returns a cloud with the commit on its workers, and the commit."""
  cloud = cloud(ACTIVE, workers=1)
  assert cloud.call('setup.sh').returncode == 0
  return cloud, cloud.git('rev-parse', 'HEAD')


@pytest.mark.slow
def test_a_start_that_is_repeated_starts_once(cloud):
  cloud, commit = _set_up(cloud)
  cloud.experiment('exit 1')
  for start in range(2):
    for _ in range(2):
      done = cloud.worker(0, 'start', f'id{start}', commit, 'toy')
      assert done.communicate(timeout=60)[0] == f'vvlen-w-0 commit {commit}\n'
      cloud.wait_for(lambda: 'exit 1' in cloud.worker(0, 'state').communicate()[0])
    assert cloud.starts() == start + 1


@pytest.mark.slow
def test_starts_at_the_same_time_start_once(cloud):
  cloud, commit = _set_up(cloud)
  cloud.experiment('while [[ ! -e $FAKE_CLOUD/go ]]; do sleep 0.05; done')
  # The second would remove what the first has just written.
  cloud.command('rm', '''
      if mkdir "$FAKE_CLOUD/one" 2>/dev/null; then
        for _ in {1..20}; do [[ -e $FAKE_CLOUD/two ]] || sleep 0.1; done
      else
        touch "$FAKE_CLOUD/two"
        until [[ -e ~/vvlen/run/pid ]]; do sleep 0.05; done
      fi
      exec $real "$@"''')
  calls = [cloud.worker(0, 'start', 'id', commit, 'toy') for _ in range(2)]
  for call in calls:
    out, err = call.communicate(timeout=60)
    assert (out, err) == (f'vvlen-w-0 commit {commit}\n', '')
  assert cloud.starts() == 1
  # The experiment keeps no later start waiting.
  done = cloud.worker(0, 'start', 'later', commit, 'toy', '--config.seed=1')
  assert 'another experiment runs here' in done.communicate(timeout=30)[1]
  (cloud.folder / 'go').touch()


@pytest.mark.slow
def test_a_run_that_ends_while_a_start_looks_is_not_started_alone(cloud):
  cloud, commit = _set_up(cloud)
  cloud.experiment('while [[ ! -e $FAKE_CLOUD/go ]]; do sleep 0.05; done')
  cloud.worker(0, 'start', 'first', commit, 'toy').communicate(timeout=60)
  cloud.command('flock', '''
      if [[ $* == *--nonblock* ]]; then
        touch "$FAKE_CLOUD/go"
        until $real "$@"; do sleep 0.05; done; exit
      fi
      exec $real "$@"''')
  out, _ = cloud.worker(0, 'start', 'second', commit, 'toy').communicate(timeout=60)
  assert out == f'vvlen-w-0 commit {commit}\n' and cloud.starts() == 1


@pytest.mark.slow
def test_one_call_at_a_time_watches_a_tpu(cloud):
  cloud = cloud(ACTIVE)
  cloud.experiment('while [[ ! -e $FAKE_CLOUD/go ]]; do sleep 0.05; done')
  first = cloud.start(*RUN)
  cloud.wait_for((cloud.folder / 'said.1').exists)
  second = cloud.start(*RUN)
  _, err = second.communicate(timeout=60)
  assert second.returncode == 2, err
  assert f'process {first.pid} watches vvlen already' in err
  first.kill()
  first.communicate()
  third = cloud.start(*RUN)
  cloud.wait_for(lambda: cloud.calls('worker.sh same'))
  (cloud.folder / 'go').touch()
  _, err = third.communicate(timeout=60)
  assert third.returncode == 0, err
  assert cloud.starts() == 1


@pytest.mark.slow
def test_a_worker_that_has_ended_is_not_started_into_a_run_that_goes_on(cloud):
  cloud = cloud(ACTIVE)
  cloud.experiment('''
      [[ $JAX_PROCESS_ID == 1 ]] || exit 0
      while [[ ! -e $FAKE_CLOUD/go ]]; do sleep 0.05; done''')
  first = cloud.start(*RUN)
  cloud.wait_for((cloud.folder / 'workers/vvlen-w-0/vvlen/run/exit').exists)
  cloud.wait_for((cloud.folder / 'said.1').exists)
  first.kill()
  first.communicate()
  second = cloud.start(*RUN)
  cloud.wait_for(lambda: cloud.calls('worker.sh same') or
                 len(cloud.calls('worker.sh start')) == 2)
  cloud.wait_for(lambda: cloud.calls()[-1].count('worker.sh state'))
  (cloud.folder / 'go').touch()
  _, err = second.communicate(timeout=60)
  assert second.returncode == 0, err
  assert cloud.starts() == 1


@pytest.mark.slow
def test_a_setup_that_is_repeated_waits_for_the_first(cloud):
  cloud, commit = _set_up(cloud)
  folder = cloud.homes()[0] / 'vvlen' / commit
  shutil.rmtree(folder / '.venv')
  cloud.command('python3.13', PYTHON.partition('\n')[2].replace(
      'echo "$PWD $*"', 'touch "$FAKE_CLOUD/installing"\n'
      'while [[ ! -e $FAKE_CLOUD/go ]]; do sleep 0.05; done; echo "$PWD $*"'))
  cloud.command('flock', 'touch "$FAKE_CLOUD/flock.$$"; exec $real "$@"')
  first = cloud.worker(0, 'setup', commit, 'gs://b-1')
  cloud.wait_for((cloud.folder / 'installing').exists)
  second = cloud.worker(0, 'setup', commit, 'gs://b-1')
  cloud.wait_for(lambda: len(list(cloud.folder.glob('flock.*'))) == 2)
  (cloud.folder / 'go').touch()
  for process in first, second:
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
  assert len((cloud.folder / 'pip.txt').read_text().splitlines()) == 2


# Three seeds, which the processes share unequally.
ENSEMBLE = ['--config=configs/linear_attention.py:smoke', '--config.num_seeds=3',
            '--config.train.seeds_at_once=3', "--config.tasks=('mean','length')",
            '--config.train_lengths=(5,)', '--config.train.num_steps=8',
            '--config.train.steps_per_call=1', '--config.train.save_every_seconds=0']


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_is_preempted_twice_ends_as_an_unbroken_one(
    cloud, tmp_path, fast_compilation, monkeypatch):
  first, second = (f'{task}_5/seeds_0_2/*/_CHECKPOINT_METADATA'
                   for task in ('mean', 'length'))
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  monkeypatch.setenv('JAX_NUM_CPU_DEVICES', '1')
  run_two_processes([sys.executable, '-m', 'experiments.linear_attention', *ENSEMBLE,
                     f'--workdir={tmp_path}/unbroken'], num_devices=1)
  # Told beforehand; and without a word, while SIGTERM would have saved.
  checkpoints = 'b-1/runs/lm/checkpoints'
  cloud = cloud(rules=[
      {'match': ' describe ', 'when': f'{checkpoints}/{first}',
       'signal': signal.SIGTERM, 'states': ['SUSPENDING', 'SUSPENDED']},
      {'match': ' describe ', 'when': f'{checkpoints}/{second}',
       'states': ['SUSPENDED']}])
  for name in ('vvlen', 'experiments', 'configs'):
    shutil.copytree(ROOT / name, cloud.checkout / name, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns('__pycache__', 'results'))
  (cloud.checkout / '.gitignore').write_text('__pycache__/\n')
  cloud.commit()
  real = cloud.folder / 'real'
  real.write_text('#!/bin/bash\n'
                  f'exec {shlex.quote(sys.executable)} '
                  '"${@/gs:\\/\\//$FAKE_CLOUD/buckets/}"\n')
  real.chmod(0o755)
  done = cloud.call('run.sh', 'linear_attention', *ENSEMBLE,
                    '--workdir=gs://b-1/runs/lm', POLL_SECONDS='0.2')
  assert done.returncode == 0, done.stderr
  assert done.stderr.count('Preempted: restart') == 2
  assert done.stderr.count('Ready: 2 processes, 2 devices') == 3
  assert len(cloud.calls(' create ')) == 3 and len(cloud.calls(' delete ')) == 2
  folder = cloud.folder / 'buckets/b-1/runs/lm'
  assert len(json.loads((folder / 'config.json').read_text())['sessions']) == 3
  unbroken = (tmp_path / 'unbroken' / 'results.csv').read_bytes()
  assert (folder / 'results.csv').read_bytes() == unbroken


# Clusters of GPUs

UNTIL_TOLD = 'trap "exit 143" TERM; touch up; while :; do sleep 0.05; done'


@pytest.mark.parametrize(('srun', 'told', 'restarts', 'code', 'requeued'), [
    ('exit 0', False, 0, 0, False),
    ('exit 2', False, 0, 2, False),
    ('exit 143', False, 0, 143, False),  # as of the others where one has failed
    (UNTIL_TOLD, True, 0, 143, True),
    (UNTIL_TOLD, True, 20, 143, False),
])
def test_a_slurm_job_is_queued_again_when_its_time_is_up(
    tmp_path, srun, told, restarts, code, requeued):
  for name, script in (('srun', 'echo "$@" >said; '
                        f'echo $JAX_LOCAL_DEVICE_IDS >devices; {srun}'),
                       ('scontrol', 'echo "$@" >requeued')):
    (tmp_path / name).write_text(f'#!/bin/bash\n{script}\n')
    (tmp_path / name).chmod(0o755)
  job = subprocess.Popen(
      [SCRIPTS / 'slurm.sbatch', 'toy', '--workdir=/a b'], cwd=tmp_path, env={
          **os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}', 'SLURM_JOB_ID': '7',
          'SLURM_RESTART_COUNT': str(restarts), 'VIRTUAL_ENV': '/env',
          'SLURM_GPUS_ON_NODE': '4'})
  if told:
    deadline = time.monotonic() + 30
    while not (tmp_path / 'up').exists() and time.monotonic() < deadline:
      time.sleep(0.02)
    job.send_signal(signal.SIGTERM)
  assert job.wait(timeout=30) == code
  assert (tmp_path / 'said').read_text() == (
      '--kill-on-bad-exit=1 /env/bin/python -m experiments.toy --workdir=/a b '
      '--distributed\n')
  assert (tmp_path / 'devices').read_text() == '0,1,2,3\n'
  assert (tmp_path / 'requeued').exists() == requeued


def test_a_jobset_fails_at_exit_code_2_and_does_not_count_disruptions():
  yaml = pytest.importorskip('yaml', reason="needs PyYAML: pip install pyyaml")
  *_, jobset = yaml.safe_load_all((SCRIPTS / 'jobset.yaml').read_text())
  workers, = jobset['spec']['replicatedJobs']
  job = workers['template']['spec']
  assert (job['backoffLimit'], job['completionMode']) == (0, 'Indexed')
  assert job['parallelism'] == job['completions'] and workers['replicas'] == 1
  pods = job['podFailurePolicy']['rules']
  policy = jobset['spec']['failurePolicy']
  assert policy['maxRestarts'] > 0

  def action(number):
    message = f'Pod x matching FailJob rule at index {number}'
    return next(rule['action'] for rule in policy['rules'] for pattern
                in rule['onJobFailureMessagePatterns'] if re.search(pattern, message))

  for number, rule in enumerate(pods):
    codes = rule.get('onExitCodes', {}).get('values')
    disrupted = [x['type'] for x in rule.get('onPodConditions', ())]
    expected = {'[2]': 'FailJobSet'}.get(
        str(codes), 'RestartJobSetAndIgnoreMaxRestarts')
    assert rule['action'] == 'FailJob' and action(number) == expected
    assert codes in ([2], [143]) or disrupted == ['DisruptionTarget']
  assert len(pods) == 3
  command = job['template']['spec']['containers'][0]['command']
  assert command[0] == 'python' and '--distributed' in command


# All scripts


@pytest.mark.slow
def test_a_dry_run_prints_every_command_and_calls_none(cloud):
  cloud = cloud()
  cloud.set(SLICES='2')
  cloud.commit()
  printed = {}
  for script in ('create', 'setup', 'status', 'logs', 'stop', 'delete'):
    done = cloud.call(f'{script}.sh', '--dry-run')
    assert done.returncode == 0, done.stderr
    printed[script] = [shlex.split(line) for line in done.stdout.splitlines()]
  done = cloud.call(*RUN, '--dry-run')
  assert done.returncode == 0, done.stderr
  printed['run'] = [shlex.split(line) for line in done.stdout.splitlines()]
  assert not cloud.calls()
  verbs = {script: [' '.join(word for word in line if word[0] not in '-/')
                    for line in lines] for script, lines in printed.items()}
  describe = 'gcloud compute tpus queued-resources describe vvlen'
  both = [f'gcloud compute tpus tpu-vm ssh vvlen-{i}' for i in range(2)]
  assert verbs['create'] == [
      describe, 'gcloud compute tpus accelerator-types list',
      'gcloud compute tpus tpu-vm versions list',
      'gcloud compute tpus queued-resources create vvlen', describe]
  nodes = [f'gcloud compute tpus tpu-vm describe vvlen-{i}' for i in range(2)]
  assert verbs['setup'][0] == describe
  assert verbs['setup'][2:] == [*both, *nodes, *both]
  assert verbs['setup'][1].startswith('gcloud storage cp ')
  for script in ('status', 'logs', 'stop'):
    ask = both if script == 'logs' else [*nodes, *both]
    assert verbs[script] == [describe, *ask]
  assert verbs['delete'] == [
      describe, 'gcloud compute tpus queued-resources delete vvlen']
  assert verbs['run'] == [
      describe, *verbs['create'], *verbs['setup'], *both, describe, *nodes, *both]
  # gcloud knows every flag: the fake refuses what gcloud 528 does not have.
  for lines in printed.values():
    for line in lines:
      done = subprocess.run(
          [sys.executable, '-c', 'import sys; from tests import fake_gcloud as fake\n'
           'fake.parse(sys.argv[1:])', *line[1:]], cwd=ROOT, capture_output=True,
          env={**os.environ, 'FAKE_CLOUD': str(cloud.folder)}, text=True, check=False)
      assert done.returncode == 0, done.stderr


def test_every_script_says_how_it_is_used(cloud):
  cloud = cloud()
  for script in ('create', 'setup', 'run', 'status', 'logs', 'stop', 'delete'):
    done = cloud.call(f'{script}.sh', '--help')
    assert done.returncode == 0 and f'Usage: {script}.sh' in done.stdout
    assert 'xit codes:' in done.stdout and '#' not in done.stdout


@pytest.mark.slow
def test_shellcheck_finds_nothing():
  shellcheck = pathlib.Path(sys.executable).parent / 'shellcheck'
  if not shellcheck.exists():
    pytest.skip("needs shellcheck: pip install '.[test]'")
  done = subprocess.run([shellcheck, '--external-sources', *BASH_SCRIPTS], cwd=SCRIPTS,
                        capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout


def test_every_script_stops_at_errors():
  for path in {*BASH_SCRIPTS} - {SCRIPTS / 'env.sh', SCRIPTS / 'common.sh'}:
    assert '\nset -euo pipefail\n' in path.read_text(), path
