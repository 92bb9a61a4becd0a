"""Where each name of `gptrs.api.importers` is; read by type checkers and by `gptrs.lazy_names`."""

from gptrs.capture.tensor import share_array as share_array
from gptrs.capture.tensor import take_array as take_array
from gptrs.checkpoint.files.atomic_write import atomic_file as atomic_file
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor as OutgoingTensor
from gptrs.checkpoint.formats.foreign_files import write_data as write_data
from gptrs.plugins.converters import DAMAGE as DAMAGE
from gptrs.plugins.converters import Converter as Converter
from gptrs.plugins.converters import Converters as Converters
from gptrs.plugins.converters import Node as Node
from gptrs.plugins.converters import is_number as is_number
from gptrs.plugins.converters import is_symbol as is_symbol
from gptrs.plugins.converters import scalar as scalar
from gptrs.plugins.converters import size_tensor as size_tensor
from gptrs.plugins.exporters import FileContents as FileContents
from gptrs.plugins.exporters import FileValue as FileValue
from gptrs.plugins.exporters import ImportedModel as ImportedModel
from gptrs.plugins.exporters import LanguageModelFile as LanguageModelFile
from gptrs.plugins.exporters import ModelInput as ModelInput
from gptrs.plugins.exporters import OutgoingModel as OutgoingModel
from gptrs.plugins.exporters import named_arguments as named_arguments
from gptrs.plugins.imported_graph import ConvertedGraph as ConvertedGraph
from gptrs.plugins.imported_graph import ImportedGraph as ImportedGraph
from gptrs.plugins.imported_graph import Step as Step
from gptrs.plugins.imported_graph import free_axes as free_axes
from gptrs.plugins.imported_graph import jitted as jitted
from gptrs.quoting import clipped as clipped
