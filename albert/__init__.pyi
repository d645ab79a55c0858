from albert import config as config
from albert import errors as errors
from albert import modeling as modeling
from albert import optimization as optimization
from albert import tokenization as tokenization
from albert.albert_tokenizer import AlbertTokenizer as AlbertTokenizer
from albert.albert_tokenizer import AlbertTokenizerFast as AlbertTokenizerFast
from albert.config import AlbertConfig as AlbertConfig
from albert.inference.session import AnsweringSession as AnsweringSession
from albert.inference.session import open_session as open_session
from albert.modeling import AlbertForBeamQuestionAnswering as AlbertForBeamQuestionAnswering
from albert.modeling import AlbertForMaskedLM as AlbertForMaskedLM
from albert.modeling import AlbertForMultipleChoice as AlbertForMultipleChoice
from albert.modeling import AlbertForPreTraining as AlbertForPreTraining
from albert.modeling import AlbertForQuestionAnswering as AlbertForQuestionAnswering
from albert.modeling import AlbertForSequenceClassification as AlbertForSequenceClassification
from albert.modeling import AlbertForTokenClassification as AlbertForTokenClassification
from albert.modeling import AlbertModel as AlbertModel
from albert.modeling import from_pretrained as from_pretrained
from albert.pretraining_data.dataset import pretraining_dataset as pretraining_dataset

__version__: str
