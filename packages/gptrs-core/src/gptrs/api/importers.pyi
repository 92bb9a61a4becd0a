"""Where each name of `gptrs.api.importers` is; read by type checkers and by `gptrs.lazy_names`."""

from gptrs.capture.host_arrays import share_array as share_array
from gptrs.capture.host_arrays import take_array as take_array
from gptrs.checkpoint.files.atomic_write import atomic_file as atomic_file
from gptrs.checkpoint.formats.outgoing_tensor import OutgoingTensor as OutgoingTensor
from gptrs.checkpoint.formats.outgoing_tensor import write_data as write_data
from gptrs.plugins.exporters import OutgoingModel as OutgoingModel
from gptrs.plugins.imported_graph import ConvertedGraph as ConvertedGraph
from gptrs.plugins.imported_graph import ImportedGraph as ImportedGraph
from gptrs.plugins.importers import ImportedModel as ImportedModel
from gptrs.plugins.importers import ModelInput as ModelInput
from gptrs.plugins.importers import named_arguments as named_arguments
