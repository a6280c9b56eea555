"Hands the package facts of settings.ini to setuptools and copies its [lab] defaults to agentlab/lab.ini."
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


class Modules(build_py):
    "Every module but nbdev's index of names, half a megabyte that nothing reads."
    def find_package_modules(self, package, folder):
        return [found for found in super().find_package_modules(package, folder) if found[1] != "_modidx"]


setup(
    cmdclass={"build_py": Modules},
    description=package["description"],
    author=package["author"],
    license_expression=package["license"],
    license_files=["LICENSE"],
    keywords=[word.strip() for word in package["keywords"].split(",")],
    classifiers=lines(package["classifiers"]),
    install_requires=lines(package["requirements"]),
    extras_require={name: lines(listed) for name, listed in facts["extras"].items()},
)
