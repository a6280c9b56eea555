"Hands the package facts of settings.ini to setuptools and copies its [lab] defaults to agentlab/lab.ini."
import re
from configparser import ConfigParser
from pathlib import Path
from setuptools import setup
from setuptools.command.build_py import build_py

here = Path(__file__).resolve().parent
facts = ConfigParser(interpolation=None)
facts.read(here/"settings.ini", encoding="utf-8")
package = facts["package"]


def lines(text): return text.split("\n")[1:]


# A wheel has no settings.ini, so the defaults travel inside the package. tools/check.py compares the two.
lab = here/"agentlab"/"lab.ini"
rows = [f"{name} = {value}" for name, value in facts["lab"].items()]
text = "\n".join(["; Made by setup.py from settings.ini: edit it there.", "[lab]", *rows, ""])
if not lab.exists() or lab.read_text(encoding="utf-8") != text: lab.write_text(text, encoding="utf-8")


LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")  # to a file of the repository
repository = package["repository"].strip().rstrip("/")


def outside(readme: str) -> str:
    """The README as it is read where the repository is not: its links lead to the repository where the address of that
    is known; otherwise their words stay, and of a picture what it shows. Code is left as it is."""
    def instead(found):
        picture, words, path = found.groups()
        if repository: return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/HEAD/{path})"
        return f"*{words}*" if picture else words
    blocks = re.split(r"(^```.*?^```$)", readme, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(instead, part) for part in blocks)


class Modules(build_py):
    "Every module but nbdev's index of names, half a megabyte that nothing reads."
    def find_package_modules(self, package, folder):
        return [found for found in super().find_package_modules(package, folder) if found[1] != "_modidx"]


setup(
    cmdclass={"build_py": Modules},
    description=package["description"],
    long_description=outside((here/"README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    project_urls={"Source": repository} if repository else {},
    author=package["author"],
    license_expression=package["license"],
    license_files=["LICENSE"],
    keywords=[word.strip() for word in package["keywords"].split(",")],
    classifiers=lines(package["classifiers"]),
    install_requires=lines(package["requirements"]),
    extras_require={name: lines(listed) for name, listed in facts["extras"].items()},
)
