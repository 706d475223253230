"""Files of BABILong's predictions: read as published, written for others to read."""

import csv
import re

import pytest

from vvlen.evaluation import babilong_files as files
from vvlen.evaluation.babilong_files import Prediction

NAME = 'qa1_4k_instruction_yes_examples_no_post_prompt_yes.csv'
# As pandas writes it: quotes where needed, and an empty output as nothing.
PUBLISHED = (
    ',target,output,question\n'
    '0,hallway,The most recent location of John is hallway.,Where is John? \n'
    '1,kitchen,"Answer: ""kitchen"", or\n\nContext: bath",Where is Mary? \n'
    '2,garden,,Where is Mary? \n')
READ = [
    Prediction('hallway', 'The most recent location of John is hallway.',
               'Where is John? '),
    Prediction('kitchen', 'Answer: "kitchen", or\n\nContext: bath', 'Where is Mary? '),
    Prediction('garden', '', 'Where is Mary? ')]
ODD = [
    Prediction('garden', text, 'Where is Mary?') for text in (
        'a\rb', 'a\r\nb', '\n', 'one, two', '"', '""', '', ' spaces ', '0', '1.50',
        'NA', 'null', 'naïve 日本 \u2028 \x85 \x0c', '\t', "'", '\\', '=1+1', '�')]


def _write(path, content):
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  return path


@pytest.mark.parametrize('content', [
    PUBLISHED, PUBLISHED.replace(',target', 'Unnamed: 0,target', 1),
    '\ufeff' + PUBLISHED, '\r\n'.join(PUBLISHED.split('\n', 1))])
def test_published_files_are_read(content, tmp_path):
  assert files.read_predictions(_write(tmp_path / NAME, content)) == (READ, [])


def test_columns_may_have_any_order(tmp_path):
  content = 'question,more,output,target\nWhere?,x,no,garden\n'
  assert files.read_predictions(_write(tmp_path / NAME, content)) == (
      [Prediction('garden', 'no', 'Where?')], [])


def test_what_is_written_is_read(tmp_path):
  content = files.table_of(READ + ODD)
  assert content.startswith('"","target","output","question"\n0,"hallway","The')
  assert files.read_predictions(_write(tmp_path / NAME, content)) == (READ + ODD, [])
  rows = list(csv.reader(content.splitlines(keepends=True)[:2]))
  assert rows[1] == ['0', *READ[0]]


def test_pandas_reads_what_is_written(tmp_path):
  pandas = pytest.importorskip(
      'pandas',
      reason="compares with a published program that needs pandas: pip install pandas")
  path = _write(tmp_path / NAME, files.table_of(READ + ODD))
  found = pandas.read_csv(path)
  assert list(found.columns) == ['Unnamed: 0', 'target', 'output', 'question']
  assert list(found['target']) == [x.target for x in READ + ODD]
  assert list(found['question']) == [x.question for x in READ + ODD]
  # Outputs such as NA are read as missing ones, for which the program takes ''.
  expected = ['' if x.text in ('NA', 'null') else x.text for x in READ + ODD]
  assert list(found['output'].fillna('')) == expected


def test_names_say_task_and_length():
  assert files.parse_name(f'some/folder/{NAME}') == (
      'qa1', 4000, 'instruction_yes_examples_no_post_prompt_yes')
  for length, number in (('0k', 0), ('512', 512), ('128k', 128_000), ('1M', 10**6)):
    assert files.parse_name(f'qa5_{length}.csv') == ('qa5', number, '')
  made = files.name_of('qa2', 96, ('examples',))
  assert made == ('qa2_96_instruction_no_examples_yes_post_prompt_no_chat_template_no_'
                  'system_prompt_no')
  assert files.parse_name(f'{made}.csv')[:2] == ('qa2', 96)
  for name in ('qa6_4k_x.csv', 'qa1.csv', 'qa1_x_4k.csv', 'qa1_4kb_x.csv', 'qa1_k.csv'):
    with pytest.raises(ValueError, match=f'{name}: the name must be TASK_LENGTH_….csv'):
      files.parse_name(name)


@pytest.mark.parametrize('row, says', [
    ('3,garden,x\n', 'it has more or fewer columns than the header'),
    ('3,garden,x,Where?,more\n', 'it has more or fewer columns than the header'),
    ('3,attic,x,Where?\n', "the target must be one of bathroom, .*office: 'attic'"),
    ('3,,x,Where?\n', "the target must be one of .*: ''"),
    ('3,garden ,x,Where?\n', "the target must be one of .*: 'garden '"),
])
def test_a_bad_row_is_named_and_the_others_are_kept(row, says, tmp_path):
  path = _write(tmp_path / NAME, PUBLISHED + row + '4,office,y,Where?\n')
  good, [bad] = files.read_predictions(path)
  assert good == [*READ, Prediction('office', 'y', 'Where?')]
  assert re.fullmatch(f'{path} row 4: {says}', bad)


@pytest.mark.parametrize('content, says', [
    ('', "is not a table of predictions: the column 'target' is missing"),
    (',target,question\n0,garden,x\n', "the column 'output' is missing"),
    (',target,output,question\n', 'is empty'),
    (b',target,output,question\n0,garden,\xff,x\n', 'is not UTF-8'),
    (PUBLISHED + '3,garden,"x', 'is not a table .*: unexpected end of data'),
    (PUBLISHED + f'3,garden,{"x" * 200_000},y\n', 'is not a table.*larger than field'),
])
def test_files_that_cannot_be_read(content, says, tmp_path):
  with pytest.raises(ValueError, match=f'{NAME}.*{says}'):
    files.read_predictions(_write(tmp_path / NAME, content))


def test_a_folder_has_one_file_of_each_task_and_length(tmp_path):
  with pytest.raises(FileNotFoundError, match='nowhere: no such folder'):
    files.read_folder(tmp_path / 'nowhere')
  with pytest.raises(ValueError, match=r'has no file TASK\.csv'):
    files.read_folder(tmp_path)
  with pytest.raises(FileNotFoundError, match='no such file'):
    files.read_predictions(tmp_path / NAME)
  for name in ('qa2_1k_x.csv', 'qa1_16k_x.csv', 'qa1_4k_x.csv', 'qa6_4k_x.csv'):
    _write(tmp_path / name, PUBLISHED)
  _write(tmp_path / 'qa1_4k_x.json', '{}')
  _write(tmp_path / 'qa3_1k_x.csv', 'target,output,question\nattic,x,y\n')
  found, bad = files.read_folder(tmp_path)
  assert list(found.items()) == [
      (('qa1', 4000), READ), (('qa1', 16000), READ), (('qa2', 1000), READ)]
  assert [re.search(r'qa\d_\dk', x)[0] for x in bad] == ['qa3_1k', 'qa6_4k']
  _write(tmp_path / 'qa1_4k_y.csv', PUBLISHED)
  says = r'of qa1 and 4000 tokens, qa1_4k_x\.csv and qa1_4k_y\.csv: put those of one'
  with pytest.raises(ValueError, match=says):
    files.read_folder(tmp_path)
