"""Configuration of Sphinx, which builds these pages as a book.

  python -m sphinx -W -n --keep-going docs docs/_build

Links in the pages are those of a repository browser. The book changes three kinds: to
pages of committed runs, of which it has copies, made in the folder `_results`; to
modules of `vvlen`, whose source it shows; to other files of the repository, which it
shows or copies. A link to `vvlen/FILE.py#NAME` leads to the line of NAME.
"""

import os
import pathlib
import re
import shutil
import sys
import textwrap

from docutils import nodes
from flax import linen
from latex2mathml.converter import convert

DOCS = pathlib.Path(__file__).parent
ROOT = DOCS.parent
RESULTS = ROOT / 'experiments' / 'results'
README = DOCS / '_results' / 'readme.md'  # a copy
# The checkout, also for the kernel that runs the tour.
sys.path.insert(0, str(ROOT))
os.environ['PYTHONPATH'] = f'{ROOT}{os.pathsep}{os.environ.get("PYTHONPATH", "")}'
os.environ.setdefault('JAX_PLATFORMS', 'cpu')

project = 'vvlen'
author = 'The vvlen authors'
copyright = author
release = re.search("__version__ = '(.*)'", (ROOT / 'vvlen/__init__.py').read_text())[1]

extensions = [
    'myst_nb',
    'sphinx.ext.autodoc',
    'sphinx.ext.autosummary',
    'sphinx.ext.napoleon',
    'sphinx.ext.viewcode',
]
templates_path = ['_templates']
exclude_patterns = ['_build', '_templates', 'examples', 'jupyter_execute']
default_role = 'literal'

html_theme = 'sphinx_book_theme'
html_title = 'vvlen'
html_theme_options = {
    'use_download_button': False,
    'show_toc_level': 2,
    'collapse_navbar': True,  # else each page holds the contents of the whole book
    'home_page_in_toc': True,
    'navbar_persistent': [],  # the side bar has a search field
}
html_math_renderer = 'mathml'
html_copy_source = False
html_show_sourcelink = False

myst_enable_extensions = ['dollarmath', 'amsmath']
myst_heading_anchors = 3
myst_url_schemes = {'http': None, 'https': None, 'mailto': None, 'repository': None}

nb_execution_mode = 'force'
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

highlight_language = 'none'
autosummary_generate = True
autosummary_imported_members = False
autodoc_member_order = 'bysource'
autodoc_typehints = 'signature'
autodoc_typehints_format = 'short'
autodoc_preserve_defaults = True
autodoc_mock_imports = ['lm_eval']  # of the extra harness
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # no second description of each attribute
napoleon_use_rtype = False
toc_object_entries_show_parents = 'hide'

# Python's own names and those of other libraries have no page in this book.
nitpick_ignore_regex = [('py:.*', r'(?!vvlen\.).*')]

_LINK = re.compile(r'(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s#]+)(#[^()\s]*)?\)')
_linked: set[pathlib.Path] = set()  # files of the repository that the book shows


def _make_links_of_the_book(app, docname, source):
  """Replaces links that leave `docs`, before a page is parsed."""
  page = pathlib.Path(app.env.doc2path(docname))
  of_results = docname.startswith('_results/')
  here = (RESULTS / page.relative_to(DOCS / '_results') if of_results else page).parent
  if page == README:
    here = ROOT

  def replaced(match):
    image, text, target, anchor = match.groups('')
    path = (here / target).resolve()
    if image and page == README:
      return f'![{text}]({os.path.relpath(path, page.parent)})'
    if image or not path.exists() or not path.is_relative_to(ROOT):
      return match[0]
    if path.is_dir():
      folders = (path, *path.parents)
      path = next(folder / name for folder in folders
                  for name in ('README.md', 'index.md') if (folder / name).exists())
    if path == ROOT / 'README.md':
      path = README
    if path.suffix == '.md' and path.is_relative_to(RESULTS):
      path = DOCS / '_results' / path.relative_to(RESULTS)
    if path.is_relative_to(DOCS):
      return f'[{text}]({os.path.relpath(path, page.parent)}{anchor})'
    return f'[{text}](repository:{path.relative_to(ROOT)}{anchor})'

  source[0] = _LINK.sub(replaced, source[0])
  if of_results:
    source[0] = f'---\norphan: true\n---\n\n{source[0]}'


def _resolve_links(app, doctree, docname):
  """Points links to files of the repository to where the book shows them."""
  for node in doctree.findall(nodes.reference):
    scheme, _, target = node.get('refuri', '').partition(':')
    if scheme == 'repository':
      path, _, anchor = target.partition('#')
      module, python, _ = path.partition('.py')
      if python and path.startswith('vvlen/'):
        page = f'_modules/{module.removesuffix("/__init__")}'
      else:
        page = f'_repository/{path}'
        _linked.add(ROOT / path)
      uri = app.builder.get_relative_uri(docname, page)
      shown_as_it_is = not python and _language(path) is None
      uri = uri.removesuffix('.html') if shown_as_it_is else uri
      node['refuri'] = f'{uri}#{anchor}' if anchor else uri


def _keep_indented_blocks(app, what, name, obj, options, lines):
  """Marks indented equations and tables of a docstring as text to show as it is."""
  blocks = textwrap.dedent('\n'.join(lines)).split('\n\n')
  for number, block in enumerate(blocks):
    if re.match(r'(Args|Attributes|Returns|Raises|Yields):\n', block):
      break
    if block.startswith(' ') and block.strip():
      blocks[number] = '::\n\n' + textwrap.indent(textwrap.dedent(block), '  ')
  lines[:] = '\n\n'.join(blocks).split('\n')


def _short_signature(app, what, name, obj, options, signature, returned):
  """Shows the fields of a linen module by name; the docstring says what they are."""
  if isinstance(obj, type) and issubclass(obj, linen.Module):
    fields = [field for field in obj.__dataclass_fields__
              if field not in ('parent', 'name')]
    return f'({", ".join(fields)})', None
  return None


def _mathml(tex, display):
  """Returns an equation as MathML, which browsers show without a network."""
  # Browsers align cells by their style alone.
  return re.sub(r'columnalign="(\w+)"', r'style="text-align: \1"',
                convert(tex, display=display))


def _show_inline_math(page, node):
  """Writes an equation within a line."""
  page.body.append(_mathml(node.astext(), 'inline'))
  raise nodes.SkipNode


def _show_math(page, node):
  """Writes an equation on its own lines."""
  page.body.append(f'<p>{_mathml(node.astext(), "block")}</p>')
  raise nodes.SkipNode


def _language(path):
  """Returns the language in which a file is shown; None for figures and data."""
  languages = {'.py': 'python', '.sh': 'bash', '.sbatch': 'bash', '.yaml': 'yaml',
               '.md': 'markdown', '.cff': 'yaml'}
  return languages.get(pathlib.PurePath(path).suffix)


def _pages_of_files(app):
  """Yields a page for each file that is linked; copies figures and data."""
  for path in sorted(_linked):
    name = path.relative_to(ROOT)
    if language := _language(name):
      body = app.builder.highlighter.highlight_block(
          path.read_text(), language, linenos='inline')
      yield (f'_repository/{name}', {'title': name, 'body': f'<h1>{name}</h1>{body}'},
             'page.html')
    else:
      copy = pathlib.Path(app.outdir, '_repository', name)
      copy.parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(path, copy)


def setup(app):
  """Connects what is above to the events of Sphinx."""
  copies = DOCS / '_results'
  shutil.rmtree(copies, ignore_errors=True)
  shutil.copytree(RESULTS, copies, ignore=lambda folder, names: [
      name for name in names if pathlib.Path(name).suffix not in ('', '.md', '.png')])
  shutil.copy(ROOT / 'README.md', README)
  app.add_html_math_renderer(
      'mathml', (_show_inline_math, None), (_show_math, None))
  app.connect('autodoc-process-docstring', _keep_indented_blocks, priority=400)
  app.connect('autodoc-process-signature', _short_signature)
  app.connect('source-read', _make_links_of_the_book)
  app.connect('doctree-resolved', _resolve_links)
  app.connect('html-collect-pages', _pages_of_files)
